//! Records of PAX headers: `LENGTH KEYWORD=VALUE\n`, the length counting all of it.

/// What records say, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Records {
    /// The name, instead of the one in the header.
    pub(super) path: Option<Vec<u8>>,
    /// Bytes of data, instead of the size in the header.
    pub(super) size: Option<u64>,
    /// The data are pieces of a file with holes.
    pub(super) is_sparse: bool,
}

impl Records {
    /// Read the data of a PAX header; what is wrong with them, otherwise.
    pub(super) fn parse(mut bytes: &[u8]) -> Result<Self, &'static str> {
        let mut records = Self::default();
        while !bytes.is_empty() {
            let (record, rest) = split(bytes).ok_or("has a damaged record")?;
            bytes = rest;
            let equals = record.iter().position(|byte| *byte == b'=');
            let (keyword, value) = equals
                .and_then(|at| Some((record.get(..at)?, record.get(at + 1..)?)))
                .filter(|(keyword, _)| !keyword.is_empty())
                .ok_or("has a record without a keyword")?;
            records.take(keyword, value)?;
        }
        Ok(records)
    }

    fn take(&mut self, keyword: &[u8], value: &[u8]) -> Result<(), &'static str> {
        match keyword {
            b"path" if value.is_empty() => return Err("has an empty path"),
            b"path" => self.path = Some(value.to_vec()),
            b"size" => self.size = Some(decimal(value).ok_or("has a size that is no number")?),
            _ if keyword.starts_with(b"GNU.sparse.") => self.is_sparse = true,
            _ => {}
        }
        Ok(())
    }

    /// Take over what `later` says.
    pub(super) fn update(&mut self, later: Self) {
        self.path = later.path.or(self.path.take());
        self.size = later.size.or(self.size);
        self.is_sparse |= later.is_sparse;
    }
}

/// The first record without its length and newline, and what follows it.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = bytes.iter().position(|byte| *byte == b' ')?;
    let len = usize::try_from(decimal(bytes.get(..space)?)?).ok()?;
    let (record, rest) = bytes.split_at_checked(len)?;
    let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
    Some((record, rest))
}

fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| match digit {
        b'0'..=b'9' => value.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

/// A record.
pub(super) fn record(keyword: &str, value: &str) -> String {
    let rest = keyword.len() + value.len() + " =\n".len();
    // The length counts its own digits, of which there may be one more by them.
    let mut len = rest;
    while rest + len.to_string().len() != len {
        len = rest + len.to_string().len();
    }
    format!("{len} {keyword}={value}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_count_themselves() {
        assert_eq!(record("path", "a"), "9 path=a\n");
        assert_eq!(record("path", ""), "8 path=\n");
        for len in 0..2000 {
            let value = "v".repeat(len);
            let record = record("path", &value);
            assert!(record.starts_with(&format!("{} ", record.len())));
            let path = Records::parse(record.as_bytes()).map(|records| records.path);
            let expected = if len == 0 {
                Err("has an empty path")
            } else {
                Ok(Some(value.into_bytes()))
            };
            assert_eq!(path, expected);
        }
    }

    #[test]
    fn the_later_of_two_records_wins_and_values_may_hold_anything() {
        let bytes = b"10 path=a\n13 path=b\n=c\n9 size=7\n18 mtime=1.500000\n";
        let records = Records::parse(bytes).unwrap();
        assert_eq!(records.path.as_deref(), Some(&b"b\n=c"[..]));
        assert_eq!((records.size, records.is_sparse), (Some(7), false));
        assert!(
            Records::parse(&record("GNU.sparse.major", "1").into_bytes())
                .unwrap()
                .is_sparse
        );
        assert_eq!(Records::parse(b""), Ok(Records::default()));
    }

    #[test]
    fn global_records_hold_until_others_come() {
        let mut global = Records::parse(b"10 path=a\n9 size=7\n").unwrap();
        global.update(Records::parse(b"9 size=8\n").unwrap());
        assert_eq!((global.path.as_deref(), global.size), (Some(&b"a"[..]), Some(8)));
    }

    #[test]
    fn damaged_records_are_refused() {
        let cases: [&[u8]; 16] = [
            b"10 path=a",
            b"11 path=a\n",
            b"8 path=a\n",
            b"0 path=a\n",
            b"3 \n",
            b"3 =\n",
            b"7 path\n",
            b"7 =abc\n",
            b" path=a\n",
            b"path=a\n",
            b"-10 path=a\n",
            b"99999999999999999999 path=a\n",
            b"18446744073709551615 path=a\n",
            b"10 path=a\n\0\0",
            b"10 size=x\n",
            b"29 size=99999999999999999999\n",
        ];
        for bytes in cases {
            assert!(Records::parse(bytes).is_err(), "{}", bytes.escape_ascii());
        }
    }
}
