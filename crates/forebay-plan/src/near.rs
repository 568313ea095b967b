//! The name somebody probably meant.

/// Names further away than this many edits are not what was meant.
const EDITS_MAX: usize = 2;

/// Characters of a name that are compared: the work grows with the product of the lengths.
const NAME_CHARS_MAX: usize = 64;

/// What to say to somebody who wrote a name nobody has: the nearest one, or all of them, which are called `kind`.
pub(crate) fn hint<'a>(wanted: &str, kind: &str, names: impl Iterator<Item = &'a str> + Clone) -> String {
    match nearest(wanted, names.clone()) {
        Some(name) => format!("did you mean {name}?"),
        None => format!("{kind} are {}", names.collect::<Vec<_>>().join(", ")),
    }
}

/// The name nearest to `wanted`, when one is near: few edits away as a whole, or few edits between the ends of dotted names.
pub(crate) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = names.map(|name| {
        let edits = distance(wanted, name);
        (edits.min(distance(end(wanted), end(name))), edits, name)
    });
    near.filter(|(nearest, _, _)| *nearest <= EDITS_MAX)
        .min_by_key(|(nearest, edits, _)| (*nearest, *edits))
        .map(|(_, _, name)| name)
}

/// What is behind the last dot.
fn end(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
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
        for wanted in ["checkpoint.save_tim", "checkpoint2.save_time", "check.save_time"] {
            assert_eq!(
                nearest(wanted, names.into_iter()),
                Some("checkpoint.save_time"),
                "{wanted}"
            );
        }
        // As a whole before by its end.
        let names = ["cost.goodput", "checkpoint.goodput"];
        assert_eq!(
            nearest("check_point.godput", names.into_iter()),
            Some("checkpoint.goodput")
        );
        assert_eq!(
            hint("colour", "figures", names.into_iter()),
            "figures are cost.goodput, checkpoint.goodput"
        );
    }
}
