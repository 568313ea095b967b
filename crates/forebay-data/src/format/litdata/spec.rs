//! Names of leaves, from the shape of a sample that `data_spec` describes.
//!
//! `data_spec` is a text of JSON: `[protocol, node]`, where a node has a `type` (none for a leaf), a `context` (for dicts: a text of JSON with
//! the keys) and its `children_spec`. The name of a leaf is the way to it, with dots between: `label`, `image.left`, `0`.

use serde_json::Value as Json;

use crate::table::FIELDS_MAX;

/// Name of a sample that is nothing but one leaf.
const ONLY_LEAF: &str = "item";

/// Names of `count` leaves. Where the description cannot be followed, or gives one name to two leaves, they are numbered.
pub(super) fn names(spec: Option<&str>, count: usize) -> Vec<String> {
    let numbered = || (0..count).map(|number| number.to_string()).collect();
    let Some(node) = spec.and_then(parse) else {
        return numbered();
    };
    let mut names = Vec::new();
    collect(&node, &mut String::new(), &mut names);
    let mut sorted = names.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if names.len() == count && sorted.len() == count {
        names
    } else {
        numbered()
    }
}

fn parse(spec: &str) -> Option<Json> {
    match serde_json::from_str(spec).ok()? {
        Json::Array(mut parts) if parts.len() == 2 => parts.pop(),
        _ => None,
    }
}

/// The JSON is at most 128 levels deep, which its parser sees to.
fn collect(node: &Json, path: &mut String, names: &mut Vec<String>) {
    let children = match node.get("children_spec") {
        Some(Json::Array(children)) => children.as_slice(),
        _ => &[],
    };
    if node.get("type").is_none_or(Json::is_null) {
        if names.len() <= FIELDS_MAX {
            names.push(if path.is_empty() {
                ONLY_LEAF.to_owned()
            } else {
                path.clone()
            });
        }
        return;
    }
    let keys = keys(node).filter(|keys| keys.len() == children.len());
    for (number, child) in children.iter().enumerate() {
        let key = keys.as_ref().and_then(|keys| keys.get(number)).cloned();
        let len = path.len();
        if len > 0 {
            path.push('.');
        }
        path.push_str(&key.unwrap_or_else(|| number.to_string()));
        collect(child, path, names);
        path.truncate(len);
    }
}

/// Keys of a dict of any kind; none for lists, tuples and what is not known.
fn keys(node: &Json) -> Option<Vec<String>> {
    let kind = node.get("type")?.as_str()?;
    if !matches!(
        kind,
        "builtins.dict" | "collections.OrderedDict" | "collections.defaultdict"
    ) {
        return None;
    }
    let context: Json = serde_json::from_str(node.get("context")?.as_str()?).ok()?;
    let list = match &context {
        Json::Array(list) => list,
        other => other.get("dict_context")?.as_array()?,
    };
    list.iter()
        .map(|key| match key {
            Json::String(text) if !text.is_empty() => Some(text.clone()),
            Json::Number(number) => Some(number.to_string()),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_ways_to_the_leaves() {
        let leaf = r#"{"type": null, "context": null, "children_spec": []}"#;
        let pair = |kind: &str, context: &str| {
            format!(r#"{{"type": "{kind}", "context": {context}, "children_spec": [{leaf}, {leaf}]}}"#)
        };
        let spec = |node: &str| format!("[1, {node}]");
        let dict = pair("builtins.dict", r#""[\"a\", \"b\"]""#);
        assert_eq!(names(Some(&spec(&dict)), 2), ["a", "b"]);
        assert_eq!(names(Some(&spec(leaf)), 1), ["item"]);
        assert_eq!(
            names(Some(&spec(&pair("builtins.tuple", r#""null""#))), 2),
            ["0", "1"]
        );
        let nested = format!(
            r#"{{"type": "builtins.dict", "context": "[\"x\", 7]", "children_spec": [{dict}, {leaf}]}}"#
        );
        assert_eq!(names(Some(&spec(&nested)), 3), ["x.a", "x.b", "7"]);
        // One name twice, another number of leaves, no description, not one: numbers.
        let twins = pair("builtins.dict", r#""[\"a\", \"a\"]""#);
        for (text, count) in [
            (spec(&twins), 2),
            (spec(&dict), 3),
            ("[1]".into(), 2),
            ("{".into(), 2),
        ] {
            let numbers: Vec<String> = (0..count).map(|number: usize| number.to_string()).collect();
            assert_eq!(names(Some(&text), count), numbers, "{text}");
        }
        assert_eq!(names(None, 1), ["0"]);
        let deep = "[".repeat(100_000);
        assert_eq!(names(Some(&deep), 1), ["0"]);
    }
}
