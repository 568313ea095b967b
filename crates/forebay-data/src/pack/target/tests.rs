//! What a killed run was uploading and cannot be given up is told.

use std::sync::{Mutex, PoisonError};

use forebay_io::DiskConfig;
use forebay_store::MemoryStore;

use super::*;

/// Keeps what it is told.
#[derive(Debug, Default)]
struct Heard(Mutex<Vec<String>>);

impl Progress for Heard {
    fn noted(&self, note: &str) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        notes.push(note.to_owned());
    }
}

#[tokio::test]
async fn uploads_that_cannot_be_given_up_are_told_once() {
    let heard = Arc::new(Heard::default());
    let progress = Arc::clone(&heard) as Arc<dyn Progress>;
    let context = Context::open(DiskConfig::default()).unwrap().with_state_dir(None);
    // A store in memory has none to give up, and says so.
    let mut target = Target::new(Arc::new(MemoryStore::new()), &context, &progress);
    target.give_up_uploads().await;
    assert_eq!(*heard.0.lock().unwrap(), Vec::<String>::new());
    let left = ["shard-000003.tar", "shard-000004.tar"].map(|name| OpenUpload {
        key: Key::parse(name).unwrap(),
        id: "7".to_owned(),
        begun: None,
    });
    target.left = Arc::new(left);
    target.give_up_uploads().await;
    let told = heard.0.lock().unwrap().clone();
    let [told] = &told[..] else { panic!("{told:?}") };
    for word in [
        "2 cannot be given up",
        "shard-000003.tar",
        "AbortIncompleteMultipartUpload",
    ] {
        assert!(told.contains(word), "no {word:?} in {told}");
    }
}
