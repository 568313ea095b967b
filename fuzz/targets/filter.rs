//! Filters: no text panics, and what is accepted can be bound and asked, with whatever bytes the fields have.

#![no_main]

use forebay_data::filter::{Filter, Outline, Value};
use forebay_data::{Dtype, Field, Kind, Tick, Unit};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, &[u8])| {
    let (text, bytes) = input;
    let Ok(filter) = Filter::parse(text) else {
        return;
    };
    // Every column it names, once as each kind.
    for (kind, unit) in kinds() {
        let field = |name: &&str| Field::new(*name, kind.clone()).counting(unit);
        let fields: Vec<Field> = filter.columns().iter().map(field).collect();
        let Ok(bound) = filter.bind(&fields) else {
            continue;
        };
        let keeps = bound.keeps(&|_| Some(bytes));
        if kind == Kind::Text {
            let outline = Outline {
                low: Some(Value::Bytes(bytes)),
                high: Some(Value::Bytes(bytes)),
                may_have_nulls: false,
                may_have_values: true,
            };
            assert_eq!(keeps, bound.may_keep(&|_| outline));
        }
        bound.keeps(&|_| None);
        assert!(bound.may_keep(&|_| Outline::UNKNOWN) || !keeps);
    }
    // And as members of JSON, whose field is what stands before a dot.
    let columns = filter.columns();
    let members = columns.iter().map(|name| match name.split_once('.') {
        Some((head, _)) => Field::new(head, Kind::Json),
        None => Field::new(*name, Kind::Text),
    });
    let fields: Vec<Field> = members.collect();
    if let Ok(bound) = filter.bind(&fields) {
        bound.keeps(&|_| Some(bytes));
        bound.keeps(&|_| None);
    }
});

fn kinds() -> impl Iterator<Item = (Kind, Option<Unit>)> {
    let plain = [Kind::Text, Kind::Json, Kind::Decimal, Kind::Image, number(Dtype::Int64), number(Dtype::Float16), number(Dtype::Bool)];
    let units = [
        Unit::Date,
        Unit::Time(Tick::Milli),
        Unit::Timestamp { tick: Tick::Micro, is_utc: true },
        Unit::Timestamp { tick: Tick::Nano, is_utc: false },
        Unit::Duration(Tick::Second),
        Unit::Decimal { digits: 18, scale: 4 },
    ];
    let counting = units.map(|unit| (number(Dtype::Int64), Some(unit)));
    plain.into_iter().map(|kind| (kind, None)).chain(counting)
}

fn number(dtype: Dtype) -> Kind {
    Kind::Array {
        dtype,
        shape: Vec::new(),
    }
}
