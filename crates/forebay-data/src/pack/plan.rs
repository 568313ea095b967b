//! The plan of a run: what is packed, and how. It is put beside the shards, and whoever goes on with them must have the same.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::PackSpec;
use super::input::Input;
use super::output::PackFormat;
use super::target::hex;
use crate::schema::Dtype;

/// Version of plan and notes; it changes with the bytes that the same input is packed to.
const PLAN_VERSION: u64 = 2;

/// What is packed, and how: the same plan gives the same bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    version: u64,
    settings: BTreeMap<String, Value>,
    /// The run that put it, or went on with it before any shard was there: a number of its own.
    #[serde(default)]
    owner: u64,
}

impl Plan {
    /// For a run that has a number of its own.
    pub(super) fn new(input: &Input, spec: &PackSpec, owner: u64) -> Self {
        // The window of a shuffle depends on the memory there is.
        let window = spec.shuffle.map(|_| spec.memory_bytes_max);
        let settings = json!({
            "input": hex(&input.identity()),
            "to": spec.to,
            "shard_size": spec.shard_bytes,
            "samples_per_shard": spec.samples_per_shard,
            "compression": spec.compression,
            "shuffle": spec.shuffle,
            "shuffle_memory": window,
            "filter": spec.filter,
            "limit": spec.limit,
            "fields": spec.fields,
            "drop_keys": spec.drop_keys,
            "token_dtype": spec.dtype.map(Dtype::name),
        });
        let mut settings: BTreeMap<String, Value> = match settings {
            Value::Object(settings) => settings.into_iter().collect(),
            _ => BTreeMap::new(),
        };
        // Only where there are some: a plan that was put before there were any is still the same.
        if !spec.hashes.is_empty() {
            let names: BTreeSet<&str> = spec.hashes.iter().map(|hash| hash.name()).collect();
            settings.insert("hashes".to_owned(), json!(names));
        }
        Self {
            version: PLAN_VERSION,
            settings,
            owner,
        }
    }

    /// True when it was put by the same run.
    pub(super) fn is_of(&self, other: &Self) -> bool {
        self.owner == other.owner
    }

    /// True when a list of shards is written beside them.
    pub(super) fn writes_index(&self) -> bool {
        self.settings.get("to") == Some(&json!(PackFormat::Mds))
    }

    /// What is different in another plan, in words.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        if self.version != other.version {
            return Some(format!(
                "a plan of version {}, where this version of Forebay has {},",
                other.version, self.version
            ));
        }
        let names = self.settings.keys().chain(other.settings.keys());
        let name = names
            .into_iter()
            .find(|name| self.settings.get(*name) != other.settings.get(*name))?;
        let shown = other.settings.get(name).unwrap_or(&Value::Null);
        Some(match name.as_str() {
            "input" => "another input".to_owned(),
            name => format!("{name} {shown}"),
        })
    }
}
