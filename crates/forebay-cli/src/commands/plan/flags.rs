//! The command line of `forebay plan`: a subcommand per model of the planner, a flag per field of the model.
//!
//! The flags are made at run time from the fields the models declare, so help, manual page, completions and the reference page show unit, default and
//! doc of each, and a field that is added to a model needs no line here. Values stay text: the model reads them, so that a flag and a
//! line of a file are refused with the same words. Fields that are tables have no flag; they come from a file or from `--set`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::builder::PossibleValuesParser;
use clap::error::ErrorKind as ClapKind;
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, Subcommand, ValueEnum};
use forebay_plan::{Field, Kind, Model, models};
use serde_json::Value;

/// Other words for a flag: model, field, word.
const ALIASES: &[(&str, &str, &str)] = &[("ingest", "samples_per_second", "images")];

/// Models that take measured rates.
const CALIBRATED: &[&str] = &["checkpoint", "cluster"];

/// How the values in the help are written.
const VALUES_HELP: &str = "Values: COUNT 405B, 16384, 128Ki; BYTES 1.5TB, 1TiB; BYTES/S 1TB/s, 400Gb/s; TIME 45s, 1h30min, 7d; \
    PER-SECOND 100k; SHARE 40%; FACTOR 2.5x; MONEY $2.5/h, $0.023/GB-month; WATTS 5MW; FLOP/S 989TFLOP/s. \
    B is a byte and b a bit; GB is 10^9 bytes and GiB 2^30. In a shell, put values with $ or blanks into single quotes.";

/// `forebay plan`: which model, and what it is told.
#[derive(Debug)]
pub(crate) struct PlanCommand {
    /// The model.
    pub(super) model: &'static Model,
    /// What flags say about fields.
    pub(super) fields: Vec<(&'static str, Value)>,
    /// Everything else.
    pub(super) options: PlanOptions,
}

/// Options every model takes.
#[derive(Debug, Args)]
pub(crate) struct PlanOptions {
    /// Fields from a TOML or JSON file, - for stdin; flags win over it, and several scenarios in it stand side by side
    #[arg(long, value_name = "FILE", help_heading = "Request")]
    pub(super) file: Option<PathBuf>,
    /// Only this scenario of the file
    #[arg(long, value_name = "NAME", help_heading = "Request", requires = "file")]
    pub(super) scenario: Option<String>,
    /// A field by its name, also in a table: checkpoint.storage=1TB/s; a list or table is written as in TOML
    #[arg(long, value_name = "FIELD=VALUE", help_heading = "Request")]
    pub(super) set: Vec<String>,
    /// Use rates measured by `forebay bench disk|store --json` or `forebay demo --json`
    #[arg(long, value_name = "FILE", help_heading = "Request")]
    pub(super) calibrate: Option<PathBuf>,
    /// Nodes that each have what was measured, such as disks of their own
    #[arg(long, value_name = "COUNT", help_heading = "Request", requires = "calibrate",
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(super) calibrate_nodes: Option<u32>,
    /// Formula, inputs and source of figures, by name or all of them
    #[arg(
        long,
        value_name = "FIGURE|all",
        help_heading = "Answer",
        value_delimiter = ',',
        conflicts_with = "sweep"
    )]
    pub(super) explain: Vec<String>,
    /// Only these figures
    #[arg(long, value_name = "FIGURE", help_heading = "Answer", value_delimiter = ',')]
    pub(super) figures: Vec<String>,
    /// Form of the table
    #[arg(long, value_enum, help_heading = "Answer", conflicts_with = "explain")]
    pub(super) format: Option<Format>,
    /// Vary a field: storage=10GB/s..1TB/s:10 in equal factors, 'gpus=8..64:8 linear' in equal steps, or a list interval=1h,2h
    #[arg(long, value_name = "FIELD=RANGE", help_heading = "Answer")]
    pub(super) sweep: Option<String>,
    /// Draw this figure over the sweep, or without a sweep the curve of this figure that the model gives
    #[arg(
        long,
        value_name = "FIGURE",
        help_heading = "Answer",
        conflicts_with = "explain"
    )]
    pub(super) plot: Option<String>,
}

/// Form of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Aligned columns
    Text,
    /// Comma-separated, numbers in base units
    Csv,
    /// A Markdown table
    Markdown,
}

/// A field that is one value, as a flag.
struct Flag {
    field: Field,
    long: String,
    help: String,
}

/// The flags of every model, and the help of its fields that are tables; kept for the life of the process, as clap wants names to be.
static FLAGS: LazyLock<Vec<(&'static str, Vec<Flag>, String)>> = LazyLock::new(|| {
    let each = models().iter().map(|model| {
        let (single, tables): (Vec<Field>, Vec<Field>) =
            (model.fields)().into_iter().partition(Field::is_single);
        let single = single.into_iter().map(Flag::of).collect();
        (model.name, single, after_help(&tables))
    });
    each.collect()
});

fn after_help(tables: &[Field]) -> String {
    let mut text = String::new();
    for field in tables {
        let doc = field.doc.trim_end_matches('.');
        let _ = writeln!(
            text,
            "Field {}: {doc} ({}); from --file or --set.",
            field.name, field.kind
        );
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text + VALUES_HELP
}

impl Flag {
    fn of(field: Field) -> Self {
        let doc = field.doc.trim_end_matches('.');
        let help = match &field.default {
            Some(default) => format!("{doc} [default: {default}]"),
            None => doc.to_owned(),
        };
        Self {
            long: field.name.replace('_', "-"),
            help,
            field,
        }
    }

    fn arg(&'static self, model: &str) -> Arg {
        let name = self.field.name;
        let mut arg = Arg::new(name)
            .long(self.long.as_str())
            .help(self.help.as_str())
            .value_name(value_name(&self.field))
            .help_heading("Fields")
            // The model says what is wrong with a negative number.
            .allow_hyphen_values(true)
            .action(ArgAction::Set);
        if name != self.long {
            arg = arg.alias(name);
        }
        if let Kind::Choice(words) = &self.field.kind {
            arg = arg
                .value_parser(PossibleValuesParser::new(words.iter().copied()))
                .ignore_case(true);
        }
        for (_, _, word) in ALIASES.iter().filter(|alias| alias.0 == model && alias.1 == name) {
            arg = arg.visible_alias(*word);
        }
        arg
    }

    /// What the command line says about the field.
    fn value(&self, matches: &ArgMatches) -> Result<Option<Value>, clap::Error> {
        let Some(text) = matches.get_one::<String>(self.field.name) else {
            return Ok(None);
        };
        if text.starts_with("--") {
            let message = format!(
                "a value is required for '--{}' but '{}' follows\n",
                self.long,
                text.escape_debug()
            );
            return Err(clap::Error::raw(ClapKind::InvalidValue, message));
        }
        let is_choice = matches!(self.field.kind, Kind::Choice(_));
        let text = if is_choice {
            text.to_lowercase()
        } else {
            text.clone()
        };
        Ok(Some(Value::String(text)))
    }
}

/// What stands for the value of a field in help texts.
fn value_name(field: &Field) -> &'static str {
    match field.kind {
        Kind::Quantity(unit) => unit.word(),
        Kind::Choice(_) => "WORD",
        _ => "TEXT",
    }
}

/// Adds the flags of the model a command is named after.
fn with_flags(command: clap::Command) -> clap::Command {
    let about = command.get_about().cloned().unwrap_or_default();
    let found = FLAGS.iter().find(|(name, _, _)| *name == command.get_name());
    let command = match found {
        Some((name, flags, after_help)) => command
            .args(flags.iter().map(|flag| flag.arg(name)))
            .after_help(after_help.as_str()),
        None => command,
    };
    let is_calibrated = CALIBRATED.contains(&command.get_name());
    // The options come with a description of themselves, which is not the command's.
    let command = PlanOptions::augment_args(command).about(about);
    if is_calibrated {
        return command;
    }
    // Who gives them to another model is told which ones take them, but nobody is offered them.
    command
        .mut_arg("calibrate", |arg| arg.hide(true))
        .mut_arg("calibrate_nodes", |arg| arg.hide(true))
}

impl Subcommand for PlanCommand {
    fn augment_subcommands(command: clap::Command) -> clap::Command {
        let each = models()
            .iter()
            .map(|model| with_flags(clap::Command::new(model.name).about(summary(model))));
        command.subcommands(each)
    }

    fn augment_subcommands_for_update(command: clap::Command) -> clap::Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        models().iter().any(|model| model.name == name)
    }
}

/// The summary of a model, beginning as the other commands' do.
fn summary(model: &Model) -> String {
    let mut letters = model.summary.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

impl FromArgMatches for PlanCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let missing = || clap::Error::raw(ClapKind::MissingSubcommand, "a model is missing\n");
        let (name, matches) = matches.subcommand().ok_or_else(missing)?;
        let model = models()
            .iter()
            .find(|model| model.name == name)
            .ok_or_else(missing)?;
        let mut fields = Vec::new();
        for (_, flags, _) in FLAGS.iter().filter(|(name, _, _)| *name == model.name) {
            for flag in flags {
                if let Some(value) = flag.value(matches)? {
                    fields.push((flag.field.name, value));
                }
            }
        }
        let options = PlanOptions::from_arg_matches(matches)?;
        Ok(Self {
            model,
            fields,
            options,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn no_field_of_a_model_collides_with_another_option() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_field_is_a_flag_or_told_as_a_table() {
        for model in models() {
            let (_, flags, after_help) = FLAGS.iter().find(|(name, _, _)| *name == model.name).unwrap();
            for field in (model.fields)() {
                let is_flag = flags.iter().any(|flag| flag.field.name == field.name);
                let is_told = after_help.contains(&format!("Field {}:", field.name));
                assert!(is_flag != is_told, "{}.{}", model.name, field.name);
            }
        }
    }

    #[test]
    fn aliases_are_of_fields() {
        for (model, field, _) in ALIASES {
            let fields = (forebay_plan::model(model).unwrap().fields)();
            assert!(fields.iter().any(|known| known.name == *field), "{model}.{field}");
        }
    }
}
