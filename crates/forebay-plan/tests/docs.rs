//! The documentation lists every field of every model as it is, and explains every model.

use forebay_plan::{Model, Table, models};

const PLANNER: &str = include_str!("../../../docs/concepts/planner.md");

/// The fields of a model as the documentation has them.
fn table(model: &Model) -> String {
    let row = |field: forebay_plan::Field| {
        let default = field.default.unwrap_or_default();
        vec![
            format!("`{}`", field.name),
            field.kind.to_string(),
            default,
            field.doc.to_owned(),
        ]
    };
    Table {
        columns: ["field", "written as", "default", "what it is"]
            .map(str::to_owned)
            .to_vec(),
        rows: (model.fields)().into_iter().map(row).collect(),
    }
    .to_markdown()
}

#[test]
fn every_model_is_documented_as_it_is() {
    for model in models() {
        let table = table(model);
        assert!(
            PLANNER.contains(&format!("## {}\n", model.name)),
            "no section on {}",
            model.name
        );
        assert!(
            PLANNER.contains(&table),
            "the table of {} must be:\n{table}",
            model.name
        );
    }
}
