//! Members of JSON that a filter asks for, and whether any row has them.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// Members of JSON that a filter asks for. No schema says whether there are such, so a name that is misspelt shows only in that nobody has it.
#[derive(Debug, Default)]
pub(super) struct Members {
    list: Vec<Member>,
    /// A row was looked at.
    is_used: AtomicBool,
}

#[derive(Debug)]
struct Member {
    /// As the filter has it.
    name: String,
    index: usize,
    path: Vec<String>,
    is_met: AtomicBool,
}

impl Members {
    pub(super) fn ask_for(&mut self, field: &str, index: usize, path: &[String]) {
        let name = format!("{field}.{}", path.join("."));
        if self.list.iter().all(|member| member.name != name) {
            self.list.push(Member {
                name,
                index,
                path: path.to_vec(),
                is_met: AtomicBool::new(false),
            });
        }
    }

    /// Look for those that no row had so far: mostly none, after the first row.
    pub(super) fn look<'a>(&self, value: &dyn Fn(usize) -> Option<&'a [u8]>) {
        if self.list.is_empty() {
            return;
        }
        if !self.is_used.load(Relaxed) {
            self.is_used.store(true, Relaxed);
        }
        for one in self.list.iter().filter(|one| !one.is_met.load(Relaxed)) {
            let is_there = value(one.index).is_some_and(|json| member(json, &one.path).is_some());
            if is_there {
                one.is_met.store(true, Relaxed);
            }
        }
    }

    /// What to tell people of those that none of the rows had that were looked at.
    pub(super) fn note_unmet(&self) -> Option<String> {
        let unmet = self.list.iter().filter(|one| !one.is_met.load(Relaxed));
        let unmet: Vec<String> = unmet
            .map(|one| format!("'{}'", one.name.escape_debug()))
            .collect();
        let is_told = self.is_used.load(Relaxed) && !unmet.is_empty();
        is_told.then(|| {
            format!(
                "no sample that was looked at has {}, which the filter asks for",
                unmet.join(" or ")
            )
        })
    }
}

/// The member of JSON that a path leads to; `None` where it is not there, or is no JSON.
pub(super) fn member(json: &[u8], path: &[String]) -> Option<serde_json::Value> {
    let mut value: serde_json::Value = serde_json::from_slice(json).ok()?;
    for name in path {
        value = value.get_mut(name)?.take();
    }
    Some(value)
}
