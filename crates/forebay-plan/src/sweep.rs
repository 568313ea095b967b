//! One field over a range: a report for each value.
//!
//! A range is written `1GB/s..1TB/s:10` (ten values in equal factors), `1..10:10 linear` (in equal steps), or as a list `1h,2h,4h`.
//! The field may be dotted in the cluster model (`checkpoint.storage`). A value the model refuses is kept with its reason, so
//! that one impossible corner does not hide the rest.

use forebay_core::Result;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::field::Field;
use crate::quantity::Unit;
use crate::registry;
use crate::report::{Report, Series};
use crate::sheet::wrong;
use crate::table::Table;

/// More points than a plot shows.
pub const SWEEP_POINTS_MAX: usize = 1000;

/// Points when a range does not say.
const POINTS_DEFAULT: usize = 10;

/// One value of the field and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepPoint {
    /// The value in its base unit, where it is a quantity.
    pub value: Option<f64>,
    /// The value in words.
    pub text: String,
    /// The report, unless the model refused.
    pub report: Option<Report>,
    /// Why the model refused, with what would be right.
    pub refused: Option<String>,
}

/// Reports over a range.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sweep {
    /// Name of the model.
    pub model: String,
    /// Name of the field.
    pub field: String,
    /// Unit of the field, where it is a quantity.
    pub unit: Option<Unit>,
    /// The points, in the order of the range.
    pub points: Vec<SweepPoint>,
}

/// Runs a model for each value of a field.
pub fn sweep(model: &str, request: &Value, field: &str, range: &str) -> Result<Sweep> {
    let described = find_field(model, field)?;
    let values = values(&described, range)?;
    let mut points = Vec::new();
    for (value, text, json) in values {
        let mut request = request.clone();
        put(&mut request, field, json);
        let (report, refused) = match registry::run(model, &request) {
            Ok(report) => (Some(report), None),
            Err(error) => {
                let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
                (None, Some(format!("{}{hint}", error.message())))
            }
        };
        points.push(SweepPoint {
            value,
            text,
            report,
            refused,
        });
    }
    Ok(Sweep {
        model: model.to_owned(),
        field: field.to_owned(),
        unit: described.unit,
        points,
    })
}

impl Sweep {
    /// One row per value, one column per figure that is named.
    pub fn table(&self, figures: &[&str]) -> Table {
        let mut columns = vec![self.field.clone()];
        columns.extend(figures.iter().map(|name| (*name).to_owned()));
        columns.push("refused".to_owned());
        let row = |point: &SweepPoint| {
            let mut row = vec![point.text.clone()];
            row.extend(figures.iter().map(|name| {
                let figure = point.report.as_ref().and_then(|report| report.figure(name));
                figure.map_or_else(String::new, |figure| figure.unit.show(figure.value).text)
            }));
            row.push(point.refused.clone().unwrap_or_default());
            row
        };
        Table {
            columns,
            rows: self.points.iter().map(row).collect(),
        }
    }

    /// A figure against the field, for a plot; nothing for a field that is no quantity or a figure no report has.
    pub fn series(&self, figure: &str) -> Option<Series> {
        let found = |point: &SweepPoint| {
            let figure = point.report.as_ref()?.figure(figure)?;
            Some(([point.value?, figure.value], figure.unit))
        };
        let points: Vec<([f64; 2], Unit)> = self.points.iter().filter_map(found).collect();
        Some(Series {
            name: format!("{figure}_by_{}", self.field),
            x_name: self.field.clone(),
            x_unit: self.unit?,
            y_name: figure.to_owned(),
            y_unit: points.first()?.1,
            points: points.into_iter().map(|(point, _)| point).collect(),
            mark: None,
        })
    }
}

/// The field of a model, or `model.field` of the cluster model.
fn find_field(model: &str, name: &str) -> Result<Field> {
    let (model, name) = match (model, name.split_once('.')) {
        ("cluster", Some((part, name))) => (part, name),
        _ => (model, name),
    };
    let fields = (registry::model(model)?.fields)();
    let names: Vec<&str> = fields.iter().map(|field| field.name).collect();
    let names = names.join(", ");
    fields
        .into_iter()
        .find(|field| field.name == name)
        .ok_or_else(|| {
            wrong(
                format!("{model} has no field '{}'", name.escape_debug()),
                format!("fields are {names}"),
            )
        })
}

/// Puts a value at a dotted place, making tables on the way.
fn put(request: &mut Value, path: &str, value: Value) {
    let mut place = request;
    for key in path.split('.') {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        let Value::Object(map) = place else { return };
        place = map.entry(key).or_insert(Value::Null);
    }
    *place = value;
}

/// A value of the field: as a number, in words, and as the model reads it.
type Choice = (Option<f64>, String, Value);

fn values(field: &Field, range: &str) -> Result<Vec<Choice>> {
    let Some(unit) = field.unit else {
        let words = range.split(',').map(str::trim).filter(|word| !word.is_empty());
        let word = |word: &str| (None, word.to_owned(), scalar(word));
        return limited(words.map(word).collect(), field);
    };
    let show = |value: f64| (Some(value), unit.show(value).text, json!(value));
    let Some((from, rest)) = range.split_once("..") else {
        let parts = range.split(',').map(|part| unit.parse(part).map(show));
        return limited(parts.collect::<Result<_>>()?, field);
    };
    let (rest, linear) = match rest.strip_suffix("linear") {
        Some(rest) => (rest.trim_end(), true),
        None => (rest, false),
    };
    let (to, points) = match rest.rsplit_once(':') {
        Some((to, points)) => (to, points.trim().parse().unwrap_or(0)),
        None => (rest, POINTS_DEFAULT),
    };
    let (from, to) = (unit.parse(from)?, unit.parse(to)?);
    if !(2..=SWEEP_POINTS_MAX).contains(&points) {
        let message = format!("a sweep has 2 to {SWEEP_POINTS_MAX} points");
        return Err(wrong(message, "write from..to:10"));
    }
    if from >= to || (!linear && from <= 0.0) {
        return Err(wrong(
            format!("'{}' is not a rising range", range.escape_debug()),
            "write from..to:10 with from below to; a range from 0 needs ' linear' at its end",
        ));
    }
    let at = |index: usize| {
        let part = index as f64 / (points - 1) as f64;
        match (index == points - 1, linear) {
            (true, _) => to,
            (false, true) => from + (to - from) * part,
            (false, false) => from * (to / from).powf(part),
        }
    };
    limited((0..points).map(|index| show(at(index))).collect(), field)
}

/// A word as JSON: `true` and `false` are no text.
fn scalar(word: &str) -> Value {
    match word {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        word => Value::String(word.to_owned()),
    }
}

fn limited(values: Vec<Choice>, field: &Field) -> Result<Vec<Choice>> {
    if (1..=SWEEP_POINTS_MAX).contains(&values.len()) {
        return Ok(values);
    }
    Err(wrong(
        format!(
            "{} values for {} are not between 1 and {SWEEP_POINTS_MAX}",
            values.len(),
            field.name
        ),
        "write a list a,b,c or a range from..to:10",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_lists_give_points() {
        let request = json!({ "size": "50TB", "gpus": 1024 });
        let found = sweep("checkpoint", &request, "storage", "100GB/s..1TB/s:4").unwrap();
        let texts: Vec<&str> = found.points.iter().map(|point| point.text.as_str()).collect();
        assert_eq!(texts, ["100 GB/s", "215.4 GB/s", "464.2 GB/s", "1 TB/s"]);
        let curve = found.series("goodput").unwrap();
        assert!(curve.points.windows(2).all(|pair| pair[0][1] < pair[1][1]));
        assert_eq!(found.table(&["goodput"]).rows.len(), 4);
        let found = sweep(
            "checkpoint",
            &json!({ "size": "50TB", "storage": "1TB/s" }),
            "mode",
            "sync,async",
        );
        assert_eq!(found.unwrap().points.len(), 2);
    }

    #[test]
    fn an_impossible_corner_keeps_its_reason() {
        let request = json!({ "size": "50TB", "gpus": 1024, "storage": "200GB/s" });
        let found = sweep("checkpoint", &request, "interval", "1min, 1h").unwrap();
        assert!(found.points[0].refused.as_ref().unwrap().contains("due every"));
        assert!(found.points[1].report.is_some());
    }

    #[test]
    fn bad_ranges_are_refused() {
        let request = json!({});
        for (field, range) in [
            ("storage", "1TB/s..1GB/s:3"),
            ("storage", "0..1GB/s:3"),
            ("storage", "1GB/s..2GB/s:1"),
            ("storage", "1GB/s..2GB/s:x"),
            ("storage", ""),
            ("colour", "1..2"),
            ("mode", ""),
        ] {
            assert!(
                sweep("checkpoint", &request, field, range)
                    .unwrap_err()
                    .hint()
                    .is_some(),
                "{range}"
            );
        }
    }

    #[test]
    fn a_field_of_a_part_is_swept_in_the_cluster_model() {
        let request = json!({ "gpus": 1024, "params": "70B", "checkpoint": { "storage": "100GB/s" } });
        let found = sweep("cluster", &request, "checkpoint.storage", "10GB/s,1TB/s").unwrap();
        let goodput = |index: usize| {
            found.points[index]
                .report
                .as_ref()
                .unwrap()
                .value("checkpoint.goodput")
        };
        assert!(goodput(0) < goodput(1));
    }
}
