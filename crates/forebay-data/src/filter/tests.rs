//! The language, three-valued truth, and that ruling out never rules out a row that would remain.

use forebay_core::ErrorKind;
use proptest::prelude::*;

use super::*;
use crate::schema::{Dtype, Kind, Tick, Unit};

fn fields() -> Vec<Field> {
    let array = |dtype| Kind::Array {
        dtype,
        shape: Vec::new(),
    };
    vec![
        Field::new("n", array(Dtype::Int32)),
        Field::new("x", array(Dtype::Float32)),
        Field::new("ok", array(Dtype::Bool)),
        Field::new("s", Kind::Text),
        Field::new("my column", Kind::Decimal),
        Field::new("image", Kind::Image),
    ]
}

struct Row(Vec<Option<Vec<u8>>>);

fn row(n: Option<i32>, x: f32, ok: bool, s: Option<&str>) -> Row {
    Row(vec![
        n.map(|n| n.to_le_bytes().to_vec()),
        Some(x.to_le_bytes().to_vec()),
        Some(vec![u8::from(ok)]),
        s.map(|s| s.as_bytes().to_vec()),
        Some(b"12".to_vec()),
        None,
    ])
}

fn keeps(text: &str, row: &Row) -> bool {
    let bound = Filter::parse(text).unwrap().bind(&fields()).unwrap();
    bound.keeps(&|column| row.0[column].as_deref())
}

#[test]
fn conditions_mean_what_they_say() {
    let row = row(Some(5), 0.1, true, Some("it's"));
    for text in [
        "n = 5",
        "n == 5",
        "n != 4",
        "n <> 4.5",
        "n < 6",
        "n<=5",
        "n > -1",
        "n>=4.99",
        "N_ is null or n=5",
        "x = 0.1",
        "x < 1",
        "ok = true",
        "ok != FALSE",
        "s = 'it''s'",
        "s in ('a', 'it''s')",
        "n not in (1, 2)",
        "\"my column\" = 12",
        "\"my column\" < 12.5",
        "image is null",
        "s is not null",
        "not (n = 4 or n = 6)",
        "n = 1 or n = 2 or n = 5 and s > 'i'",
        "not n = 4 and not n = 6",
        "((n = 5))",
        "s < 'j'",
    ] {
        let text = text.replace("N_ is null or ", "image is not null or ");
        assert!(keeps(&text, &row), "{text}");
        assert!(!keeps(&format!("not ({text})"), &row), "not {text}");
    }
}

#[test]
fn a_comparison_with_nothing_is_neither_true_nor_false() {
    let row = row(None, f32::NAN, false, None);
    for text in [
        "n = 1",
        "n != 1",
        "not n = 1",
        "n in (1)",
        "n not in (1)",
        "n = 1 and ok = false",
        "not (n = 1 and ok = false)",
    ] {
        assert!(!keeps(text, &row), "{text}");
    }
    for text in [
        "n = 1 or ok = false",
        "not (n = 1 and ok = true)",
        "n is null",
        "x != 1",
        "not x = 1",
        "not x < 1",
    ] {
        assert!(keeps(text, &row), "{text}");
    }
}

#[test]
fn mistakes_are_named_with_their_place() {
    for (text, part) in [
        ("", "a column is missing, there is the end (character 1"),
        (
            "n",
            "a comparison, `in` or `is` is missing, there is the end (character 2",
        ),
        ("n = ", "a value is missing"),
        ("n = m", "a value is missing, there is `m` (character 5"),
        ("n = null", "a value is missing, there is `null`"),
        (
            "n = 1 n = 2",
            "`and`, `or` or the end is missing, there is `n` (character 7",
        ),
        ("(n = 1", "`)` is missing, there is the end"),
        ("n in 1", "`(` is missing"),
        ("n in ()", "a value is missing, there is `)`"),
        ("n is 3", "`null` is missing"),
        ("and = 3", "a column is missing, there is `and`"),
        ("s = 'abc", "never closed (character 5"),
        ("n = 1x", "`1x` is not a number"),
        ("n = 1e999", "is not a number"),
        ("n ! 3", "no such comparison"),
        ("n = 1 ; n", "`;` means nothing here (character 7"),
    ] {
        let error = Filter::parse(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}");
        assert!(error.message().contains(part), "{text}: {error}");
        assert!(error.hint().is_some());
    }
    for (text, part) in [
        ("m = 1", "no column 'm'"),
        ("n = 'a'", "'n' cannot be compared with text"),
        ("n = true", "with a truth value"),
        ("ok = 1", "with a number"),
        ("s in ('a', 2)", "'s' cannot be compared with a number"),
        ("image = 'a'", "'image'"),
    ] {
        let error = Filter::parse(text).unwrap().bind(&fields()).unwrap_err();
        assert!(error.message().contains(part), "{text}: {error}");
        assert!(error.hint().is_some());
    }
}

/// Integers that count something compare with what people write.
#[test]
fn dates_and_decimals_compare_as_they_are_written() {
    let int = |dtype| Kind::Array {
        dtype,
        shape: Vec::new(),
    };
    let tick = Tick::Milli;
    let wide = Kind::Encoded {
        encoding: "decimal128:30,3".to_owned(),
    };
    let fields = [
        Field::new("day", int(Dtype::Int32)).counting(Some(Unit::Date)),
        Field::new("at", int(Dtype::Int64)).counting(Some(Unit::Timestamp { tick, is_utc: true })),
        Field::new("price", int(Dtype::Int64)).counting(Some(Unit::Decimal { digits: 9, scale: 2 })),
        Field::new("wide", wide),
    ];
    let row = [
        19_874i32.to_le_bytes().to_vec(),
        1_717_160_700_500i64.to_le_bytes().to_vec(),
        9_995i64.to_le_bytes().to_vec(),
        (-12_345_678_901_234_567_890_123i128).to_le_bytes().to_vec(),
    ];
    for (text, is_kept) in [
        ("day = '2024-05-31'", true),
        ("day >= '2024-06-01'", false),
        ("day in ('1970-01-01', '2024-05-31')", true),
        ("day = 19874", true),
        ("at > '2024-05-31'", true),
        ("at = '2024-05-31T13:05:00.5Z'", true),
        (
            "at < '2024-05-31 13:05:00.5005' and at > '2024-05-31 13:05:00.4999'",
            true,
        ),
        ("at = '2024-05-31 13:05:00.5005'", false),
        ("price = 99.95", true),
        ("price = 99.949", false),
        ("price < 99.951 and price > 99.949", true),
        ("price >= 100", false),
        ("price > -1e300", true),
        ("wide = -12345678901234567890.123", true),
        ("wide = -12345678901234567890.1230", true),
        ("wide = -12345678901234567890.124", false),
        ("wide < -1.2e19 and wide > -1.3e19", true),
        ("wide < -12345678901234567890", true),
        ("wide > -12345678901234567891", true),
    ] {
        let bound = Filter::parse(text).unwrap().bind(&fields).unwrap();
        assert_eq!(bound.keeps(&|column| Some(&row[column][..])), is_kept, "{text}");
    }
    for (text, part) in [
        ("day = '2024-02-30'", "a date, and '2024-02-30' is none"),
        ("at = 'yesterday'", "a timestamp:ms:utc"),
        ("price = '9'", "cannot be compared with text"),
        ("wide = true", "cannot be compared with a truth value"),
    ] {
        let error = Filter::parse(text).unwrap().bind(&fields).unwrap_err();
        assert!(error.message().contains(part), "{text}: {error}");
        assert!(error.hint().is_some(), "{text}");
    }
    // Nothing is ruled out that could remain.
    let bound = Filter::parse("price > 99.94").unwrap().bind(&fields).unwrap();
    let below = |high| Outline {
        low: Some(Value::Int(0)),
        high: Some(Value::Int(high)),
        may_have_nulls: false,
        may_have_values: true,
    };
    assert!(bound.may_keep(&|_| below(9_995)) && !bound.may_keep(&|_| below(9_994)));
}

#[test]
fn members_that_no_row_has_are_told() {
    let fields = [Field::new("json", Kind::Json), Field::new("n", Kind::Decimal)];
    let bound =
        Filter::parse("n = 1 or json.size.width > 3 or json.breadth > 3 or json.gone is null and n = 7")
            .unwrap();
    let bound = bound.bind(&fields).unwrap();
    assert_eq!(bound.note_unmet(), None, "nothing was looked at");
    let keeps = |json: &str| bound.keeps(&|column| (column == 0).then_some(json.as_bytes()));
    let json = r#"{"size":{"width":null}}"#.to_owned();
    assert!(!keeps(&json.clone()));
    let note = bound.clone().note_unmet().unwrap();
    assert!(
        note.contains("'json.breadth'") && !note.contains("size"),
        "{note}"
    );
    assert!(!keeps(r#"{"breadth":1}"#));
    assert_eq!(bound.note_unmet(), None);
}

#[test]
fn several_numbers_in_one_field_are_told() {
    let list = |dtype| Kind::List { dtype };
    let fields = [
        Field::new("ids", list(Dtype::Int32)),
        Field::new("counts", Kind::Varints),
        Field::new("n", Kind::Decimal),
    ];
    let bind = |text: &str| Filter::parse(text).unwrap().bind(&fields).unwrap();
    let keeps = |bound: &Bound, ids: &[i32], counts: &[u8]| {
        let ids: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let values = [Some(&ids[..]), Some(counts), Some(&b"7"[..])];
        bound.keeps(&|column| values[column])
    };
    let bound = bind("n = 8 and ids in (1, 2) or not counts > 300");
    assert!(!keeps(&bound, &[], &[0xac, 0x02, 0xac, 0x02]));
    assert!(keeps(&bound, &[1, 2], &[0xac, 0x02]));
    assert!(keeps(&bound, &[1, 2], &[5]));
    let note = bound.clone().note_unmet().unwrap();
    assert!(
        note.contains("2 of 3 samples") && note.contains("'ids'"),
        "{note}"
    );
    assert!(
        note.contains("1 of 3 samples") && note.contains("'counts'"),
        "{note}"
    );
    assert!(note.contains("one number"), "{note}");
    // One number, or none, is what can be compared; and whoever asks for null compares nothing.
    for text in ["ids = 1", "ids is null or n = 7"] {
        let bound = bind(text);
        keeps(&bound, &[1], &[1]);
        keeps(&bound, &[], &[]);
        assert_eq!(bound.note_unmet(), None, "{text}");
    }
    let bound = bind("ids is null");
    assert!(!keeps(&bound, &[1, 2], &[1]));
    assert_eq!(bound.note_unmet(), None);
}

#[test]
fn members_that_are_lists_are_told() {
    let fields = [Field::new("json", Kind::Json)];
    let bound = Filter::parse("json.size = 3").unwrap().bind(&fields).unwrap();
    let keeps = |json: &'static [u8]| bound.keeps(&|_| Some(json));
    assert!(!keeps(br#"{"size":[3,4]}"#));
    let note = bound.clone().note_unmet().unwrap();
    assert!(note.contains("'json.size'") && note.contains("list"), "{note}");
    assert!(keeps(br#"{"size":3}"#));
    assert_eq!(bound.note_unmet(), None);
}

#[test]
fn limits_hold() {
    let deep = format!("{}n = 1{}", "(".repeat(200), ")".repeat(200));
    let many = format!("n in ({}1)", "1,".repeat(TERMS_MAX));
    let nots = format!("{}n = 1", "not ".repeat(200));
    for text in [deep, many, nots, " ".repeat(TEXT_BYTES_MAX + 1)] {
        assert_eq!(Filter::parse(&text).unwrap_err().kind(), ErrorKind::LimitExceeded);
    }
    let names = Filter::parse("b = 1 and \"a\"\"c\" = 2 or b is null").unwrap();
    assert_eq!(names.columns(), ["b", "a\"c"]);
}

#[test]
fn row_groups_are_ruled_out() {
    let may_keep = |text: &str| {
        let bound = Filter::parse(text).unwrap().bind(&fields()).unwrap();
        bound.may_keep(&|column| match column {
            0 => Outline {
                low: Some(Value::Int(3)),
                high: Some(Value::Int(7)),
                may_have_nulls: false,
                may_have_values: true,
            },
            1 => Outline {
                low: Some(Value::Float(0.0)),
                high: Some(Value::Float(1.0)),
                may_have_nulls: true,
                may_have_values: true,
            },
            3 => Outline {
                low: None,
                high: None,
                may_have_nulls: true,
                may_have_values: false,
            },
            _ => Outline::UNKNOWN,
        })
    };
    for text in [
        "n < 3",
        "n = 8",
        "n in (1, 2)",
        "n is null",
        "not n >= 3",
        "not n is not null",
        "x > 1",
        "x = 2",
        "s = 'a'",
        "s is not null",
        "n = 5 and x > 3",
        "n > 9 or n < 1",
    ] {
        assert!(!may_keep(text), "{text}");
    }
    for text in [
        "n <= 3",
        "n in (1, 7)",
        "not x <= 1",
        "x != 0.5",
        "s is null",
        "n > 9 or ok = true",
        "not n = 5",
        "image is null",
    ] {
        assert!(may_keep(text), "{text}");
    }
}

/// A random condition over columns n, x and s, as text.
fn condition() -> impl Strategy<Value = String> {
    let op = prop::sample::select(vec!["=", "!=", "<", "<=", ">", ">="]);
    let leaf = prop_oneof![
        (op.clone(), -3..4i32).prop_map(|(op, value)| format!("n {op} {value}")),
        (op.clone(), -3..4i32).prop_map(|(op, value)| format!("x {op} {value}.5")),
        (op, "[ab]{0,2}").prop_map(|(op, value)| format!("s {op} '{value}'")),
        prop::collection::vec(-3..4i32, 1..3).prop_map(|values| format!(
            "n in ({})",
            values.iter().map(i32::to_string).collect::<Vec<_>>().join(",")
        )),
        Just("s is null".to_owned()),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|inner| format!("not ({inner})")),
            prop::collection::vec(inner.clone(), 2..4)
                .prop_map(|inner| format!("({})", inner.join(") and ("))),
            prop::collection::vec(inner, 2..4).prop_map(|inner| format!("({})", inner.join(") or ("))),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_ruled_out_holds_no_row_that_would_remain(
        text in condition(),
        rows in prop::collection::vec((prop::option::of(-3..4i32), -3..4i8, prop::option::of("[ab]{0,2}")), 1..6),
        nan in any::<bool>(),
    ) {
        let bound = Filter::parse(&text).unwrap().bind(&fields()).unwrap();
        let made: Vec<Row> = rows.iter().enumerate().map(|(index, (n, x, s))| {
            let x = if nan && index == 0 { f32::NAN } else { f32::from(*x) + 0.5 };
            row(*n, x, true, s.as_deref())
        }).collect();
        let outline = |column: usize| {
            let values: Vec<Value<'_>> = made.iter().filter_map(|row| row.0[column].as_deref()).filter_map(|bytes| match column {
                0 => Value::read(Dtype::Int32, bytes),
                1 => Value::read(Dtype::Float32, bytes),
                _ => Some(Value::Bytes(bytes)),
            }).collect();
            let numbers = || values.iter().copied().filter(|value| !matches!(value, Value::Float(float) if float.is_nan()));
            Outline {
                low: numbers().min_by(|a, b| a.order(*b).unwrap()),
                high: numbers().max_by(|a, b| a.order(*b).unwrap()),
                may_have_nulls: values.len() < made.len(),
                may_have_values: !values.is_empty(),
            }
        };
        let remain = made.iter().any(|row| bound.keeps(&|column| row.0[column].as_deref()));
        prop_assert!(!remain || bound.may_keep(&outline), "{}", text);
    }
}
