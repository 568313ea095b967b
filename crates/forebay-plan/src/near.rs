//! The name somebody probably meant.

/// Names further away than this many edits are not what was meant.
const EDITS_MAX: usize = 2;

/// Longer names are not compared: the work grows with the product of the lengths.
const NAME_CHARS_MAX: usize = 64;

/// The name nearest to `wanted`, when one is near: few edits away, or the only end of a dotted name that fits.
pub(crate) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = names.map(|name| (distance(wanted, name.rsplit('.').next().unwrap_or(name)), name));
    near.filter(|(edits, _)| *edits <= EDITS_MAX)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, name)| name)
}

/// Number of insertions, deletions and replacements between two words.
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().take(NAME_CHARS_MAX).collect();
    let right: Vec<char> = right.chars().take(NAME_CHARS_MAX).collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (index, one) in left.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, other) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(one != other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_find_their_name() {
        let names = ["goodput", "interval", "checkpoint.save_time"];
        assert_eq!(nearest("godput", names.into_iter()), Some("goodput"));
        assert_eq!(
            nearest("save_tim", names.into_iter()),
            Some("checkpoint.save_time")
        );
        assert_eq!(nearest("colour", names.into_iter()), None);
    }
}
