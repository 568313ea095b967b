//! What a filter compares and no schema vouches for: members of JSON, which no row may have, and lists, which may have several numbers. Neither can be compared then,
//! so whoever wrote the filter is told.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// What is to be told of the comparisons of a filter, from the rows that were looked at.
#[derive(Debug, Default)]
pub(super) struct Members {
    list: Vec<Member>,
    series: Vec<Series>,
    /// Rows that were looked at, where there is something to look for.
    rows: AtomicU64,
}

/// A member of JSON that a filter asks for. No schema says whether there is such, so a name that is misspelt shows only in that nobody has it.
#[derive(Debug)]
struct Member {
    /// As the filter has it.
    name: String,
    index: usize,
    path: Vec<String>,
    is_met: AtomicBool,
    /// Some row has a list or an object there.
    is_composite: AtomicBool,
}

/// A column of lists of numbers.
#[derive(Debug)]
struct Series {
    name: String,
    index: usize,
    item: Item,
    /// Rows that have several numbers.
    several: AtomicU64,
}

/// How numbers lie in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Item {
    /// Each in so many bytes.
    Bytes(u64),
    Varint,
}

impl Item {
    fn are_several(self, list: &[u8]) -> bool {
        match self {
            Self::Bytes(bytes) => list.len() as u64 > bytes,
            // The last byte of each alone has no high bit.
            Self::Varint => list.iter().filter(|byte| **byte < 0x80).count() > 1,
        }
    }
}

impl Members {
    /// Look for a member of JSON.
    pub(super) fn ask_for(&mut self, field: &str, index: usize, path: &[String]) {
        let name = format!("{field}.{}", path.join("."));
        if self.list.iter().all(|member| member.name != name) {
            self.list.push(Member {
                name,
                index,
                path: path.to_vec(),
                is_met: AtomicBool::new(false),
                is_composite: AtomicBool::new(false),
            });
        }
    }

    /// Look for lists of several numbers.
    pub(super) fn count_several(&mut self, field: &str, index: usize, item: Item) {
        if self.series.iter().all(|series| series.index != index) {
            self.series.push(Series {
                name: field.to_owned(),
                index,
                item,
                several: AtomicU64::new(0),
            });
        }
    }

    /// Look at a row; for members that no row had so far: mostly none, after the first row.
    pub(super) fn look<'a>(&self, value: &dyn Fn(usize) -> Option<&'a [u8]>) {
        if self.list.is_empty() && self.series.is_empty() {
            return;
        }
        self.rows.fetch_add(1, Relaxed);
        for one in self.list.iter().filter(|one| !one.is_met.load(Relaxed)) {
            match value(one.index).and_then(|json| member(json, &one.path)) {
                None => {}
                Some(found) if found.is_array() || found.is_object() => {
                    one.is_composite.store(true, Relaxed);
                }
                Some(_) => one.is_met.store(true, Relaxed),
            }
        }
        for series in &self.series {
            if value(series.index).is_some_and(|list| series.item.are_several(list)) {
                series.several.fetch_add(1, Relaxed);
            }
        }
    }

    /// What to tell people: which members none of the rows had that were looked at, and which lists have several numbers.
    pub(super) fn note_unmet(&self) -> Option<String> {
        let rows = self.rows.load(Relaxed);
        if rows == 0 {
            return None;
        }
        let unmet = |is_composite: bool| {
            let unmet = self.list.iter().filter(|one| !one.is_met.load(Relaxed));
            let unmet = unmet.filter(|one| one.is_composite.load(Relaxed) == is_composite);
            let names: Vec<String> = unmet
                .map(|one| format!("'{}'", one.name.escape_debug()))
                .collect();
            (!names.is_empty()).then(|| names.join(" or "))
        };
        let absent = unmet(false)
            .map(|names| format!("no sample that was looked at has {names}, which the filter asks for"));
        let composite = unmet(true).map(|names| {
            format!(
                "{names} is a list or an object, which cannot be compared, wherever a sample that was looked at has it"
            )
        });
        let several = self.series.iter().filter_map(|series| {
            let several = series.several.load(Relaxed);
            let name = series.name.escape_debug();
            (several > 0).then(|| {
                format!(
                    "{several} of {rows} samples that were looked at have several numbers in '{name}', which cannot be compared: a list can where it has one number"
                )
            })
        });
        let notes: Vec<String> = absent.into_iter().chain(composite).chain(several).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
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
