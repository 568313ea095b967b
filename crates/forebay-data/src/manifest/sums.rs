//! `SHA256SUMS`: the hashes of all shards, for `sha256sum -c`.

use std::fmt::Write;

use super::Shard;

/// The text, a line for each shard. Names are escaped as coreutils escape them.
pub fn sha256sums(shards: &[Shard]) -> String {
    let mut text = String::new();
    for shard in shards {
        let name = shard.key.as_str();
        if name.contains(['\\', '\n', '\r']) {
            text.push('\\');
        }
        for byte in shard.sha256 {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text.push_str("  ");
        for character in name.chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                other => text.push(other),
            }
        }
        text.push('\n');
    }
    text
}
