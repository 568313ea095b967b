//! `*.index.json`: no input panics, every tensor is in a file, and no file is outside the folder.

#![no_main]

use forebay_weights::index::Index;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(index) = Index::parse(bytes) else {
        return;
    };
    assert!(index.files().is_sorted());
    assert!(index.files().iter().all(|file| !file.is_root() && !file.as_str().split('/').any(|part| part == "..")));
    let mut used = vec![false; index.files().len()];
    for file in index.weights().values() {
        used[*file] = true;
    }
    assert!(used.iter().all(|used| *used));
});
