//! From the name of a member to the key of a sample and a field of it, as WebDataset does it.

use crate::schema::Kind;

/// Fields that WebDataset adds to each sample: a member that gives one is an error there, and our batches have the key under the first.
pub(super) const FIELDS_RESERVED: [&str; 2] = ["__key__", "__url__"];

/// A sample that has this field, not empty, is dropped.
pub(super) const FIELD_BAD: &str = "__bad__";

/// A field that is replaced where WebDataset caches shards.
pub(super) const FIELD_LOCAL_PATH: &str = "__local_path__";

/// Key and field of the member of that name, the field as it is written; `None` for members that are passed over.
pub(super) fn field_of(name: &str) -> Option<(&str, &str)> {
    split(name).filter(|_| !is_metadata(name))
}

/// Key and field of a name, metadata or not.
///
/// The regular expression is `^((?:.*/|)[^.]+)[.]([^/]*)$`. Behind the dot there is no slash, and the piece before it that has no dot must reach to the
/// start of the name or to a slash, with something in between; so it is the first dot of the base name that counts. That the first dot of
/// the expression does not match a newline, while the classes do, is followed too.
pub(crate) fn split(name: &str) -> Option<(&str, &str)> {
    let base = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = base + name.get(base..)?.find('.')?;
    let (key, field) = (name.get(..dot)?, name.get(dot + 1..)?);
    let is_key = match key.rsplit_once('.') {
        None => !key.is_empty(),
        Some((before, run)) => run
            .split_once('/')
            .is_some_and(|(inner, rest)| !rest.is_empty() && !before.contains('\n') && !inner.contains('\n')),
    };
    is_key.then_some((key, field))
}

/// True for names of metadata, `__x__` or anything below: `__[^/]*__($|/)`.
pub(crate) fn is_metadata(name: &str) -> bool {
    let is_framed = |part: &str| part.len() >= 4 && part.starts_with("__") && part.ends_with("__");
    match name.split_once('/') {
        Some((first, _)) => is_framed(first),
        None => is_framed(name.strip_suffix('\n').unwrap_or(name)) || is_framed(name),
    }
}

/// What the bytes of a field mean, by its last extension.
pub(crate) fn kind_of(field: &str) -> Kind {
    let encoded = |encoding: &str| Kind::Encoded {
        encoding: encoding.to_owned(),
    };
    match field.rsplit('.').next().unwrap_or(field) {
        "cls" | "cls2" | "class" | "count" | "index" | "inx" | "id" => Kind::Decimal,
        "txt" | "text" | "transcript" | "html" | "htm" => Kind::Text,
        "json" | "jsn" => Kind::Json,
        "jpg" | "jpeg" | "jpe" | "jfif" | "png" | "apng" | "ppm" | "pgm" | "pbm" | "pnm" | "tif" | "tiff"
        | "webp" | "bmp" | "gif" => Kind::Image,
        name @ ("npy" | "npz" | "cbor" | "gz") => encoded(name),
        "ten" | "tenbin" | "tb" => encoded("ten"),
        "mp" | "msg" | "msgpack" => encoded("msgpack"),
        "pyd" | "pickle" | "pkl" => encoded("pickle"),
        "pth" | "pt" => encoded("pth"),
        _ => Kind::Bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_dot_of_the_base_name_counts() {
        let cases = [
            ("a.jpg", Some(("a", "jpg"))),
            ("a/b.seg.png", Some(("a/b", "seg.png"))),
            ("a.d/b.txt", Some(("a.d/b", "txt"))),
            ("./a.txt", Some(("./a", "txt"))),
            ("../../a.txt", Some(("../../a", "txt"))),
            ("/etc/a.txt", Some(("/etc/a", "txt"))),
            ("a.", Some(("a", ""))),
            ("a/.x", Some(("a/", "x"))),
            ("a.d/.x", None),
            ("a", None),
            ("a/b", None),
            ("a.b/c", None),
            (".x", None),
            ("", None),
            ("\u{e9}.\u{e8}", Some(("\u{e9}", "\u{e8}"))),
        ];
        for (name, expected) in cases {
            assert_eq!(split(name), expected, "{name:?}");
        }
    }

    /// All names up to a length made of the characters that matter, and what the library itself says of each.
    #[test]
    fn every_short_name_is_read_as_webdataset_reads_it() {
        const ALPHABET: [char; 4] = ['_', '.', '/', '\n'];
        let expected = include_str!("../../../../../fixtures/wds/names.txt");
        let mut expected = expected.trim_end().chars();
        let mut names = vec![String::new()];
        let mut kept = 0;
        for _ in 0..7 {
            let longer = |name: &String| ALPHABET.map(|character| format!("{name}{character}"));
            names = names.iter().flat_map(longer).collect();
            for name in &names {
                let key = field_of(name).map(|(key, _)| key);
                let told = key.map_or('-', |key| char::from(b'0' + key.len() as u8));
                assert_eq!(Some(told), expected.next(), "{name:?}");
                kept += u32::from(key.is_some());
            }
        }
        assert_eq!(expected.next(), None);
        assert!(kept > 1000, "{kept}");
    }

    #[test]
    fn metadata_are_framed_by_two_underscores() {
        for name in ["__a.b__", "__index__.d__/a.jpg", "__.__", "____/a.b", "__a.b__\n"] {
            assert!(is_metadata(name), "{name:?}");
        }
        for name in ["_a.b_", "__a.b", "a/__b__", "a.__b__", "__a/b__", "__.jpg", ""] {
            assert!(!is_metadata(name), "{name:?}");
        }
    }

    #[test]
    fn the_last_extension_tells_the_kind() {
        let encoded = |encoding: &str| Kind::Encoded {
            encoding: encoding.to_owned(),
        };
        let cases = [
            ("cls", Kind::Decimal),
            ("txt", Kind::Text),
            ("json", Kind::Json),
            ("seg.png", Kind::Image),
            ("png.seg", Kind::Bytes),
            ("json.gz", encoded("gz")),
            ("npy", encoded("npy")),
            ("pkl", encoded("pickle")),
            ("", Kind::Bytes),
            ("bin", Kind::Bytes),
        ];
        for (field, kind) in cases {
            assert_eq!(kind_of(field), kind, "{field}");
        }
    }
}
