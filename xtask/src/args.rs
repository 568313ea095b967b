//! The command line as plain structs: nothing here looks at the machine or the checkout.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Result, anyhow, bail};
use lexopt::{Arg, Parser, ValueExt as _};

use crate::run::{BOUND_EXEC, BoundExec};
use crate::servers::ServerKind;
use crate::test::StepName;

/// What `cargo xtask --help` prints.
pub(crate) const USAGE: &str = "\
cargo xtask tidy                 check the house rules
cargo xtask test [OPTIONS]       check, build and test everything
    --fast              only what needs nothing but the Rust toolchain: fmt, tidy, clippy, rust
    --slow              also run the store tests against Garage and Ceph (same as --servers garage,ceph)
    --servers LIST      also run the store tests against these: garage, ceph
    --install           install what the chosen servers need (Garage into the cache folder; Ceph by apt-get, as root)
    --torch             add torch, Lightning and JAX to the Python environment, for the tests that need them
    --browser           also test the web page in Chromium (needs node, npm and chromium)
    --peers             also exchange data sets with the libraries of other loaders, both ways (installs 7 GB of them)
    --torch-tests DIR   with the peers: also run torch's own tests of checkpoints, from test/distributed/checkpoint of its sources
    --filter TEXT       only tests whose name contains TEXT
    --only LIST         only these steps
    --skip LIST         all but these steps
    --keep-going        go on after a failed step
    --list              print the steps and end
cargo xtask servers NAME [--install]
                                 run seaweedfs, garage or ceph on loopback until Ctrl-C
cargo xtask venv [OPTIONS]       make .venv and install the wheel of this checkout into it
    --release           build the wheel optimised
    --torch             add torch, Lightning and JAX
cargo xtask bench [ARGS...]      run bench/run.py from .venv, with a release wheel
cargo xtask fuzz [TARGET...]     fuzz the parsers, or those named
    --seconds COUNT     time for each (60)
";

/// One invocation.
#[derive(Debug)]
pub(crate) enum Command {
    Help,
    Tidy,
    Test(TestOptions),
    Servers(ServersOptions),
    Venv(VenvOptions),
    Bench(BenchOptions),
    Fuzz(FuzzOptions),
    BoundExec(BoundExec),
}

/// Options of `cargo xtask test`.
#[derive(Debug, Default)]
pub(crate) struct TestOptions {
    pub(crate) fast: bool,
    pub(crate) servers: Vec<ServerKind>,
    pub(crate) install: bool,
    pub(crate) torch: bool,
    pub(crate) browser: bool,
    pub(crate) peers: bool,
    pub(crate) torch_tests: Option<PathBuf>,
    pub(crate) filter: Option<String>,
    pub(crate) only: Vec<StepName>,
    pub(crate) skip: Vec<StepName>,
    pub(crate) keep_going: bool,
    pub(crate) list: bool,
}

/// Options of `cargo xtask servers`.
#[derive(Debug)]
pub(crate) struct ServersOptions {
    pub(crate) kind: ServerKind,
    pub(crate) install: bool,
}

/// Options of `cargo xtask venv`.
#[derive(Debug, Default)]
pub(crate) struct VenvOptions {
    pub(crate) release: bool,
    pub(crate) torch: bool,
}

/// Options of `cargo xtask bench`: everything goes to the script.
#[derive(Debug, Default)]
pub(crate) struct BenchOptions {
    pub(crate) args: Vec<OsString>,
}

/// Options of `cargo xtask fuzz`.
#[derive(Debug)]
pub(crate) struct FuzzOptions {
    pub(crate) targets: Vec<String>,
    pub(crate) seconds: u32,
}

/// Parses a whole command line, program name first.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command> {
    let mut parser = Parser::from_iter(args);
    match parser.next()? {
        None | Some(Arg::Short('h') | Arg::Long("help")) => Ok(Command::Help),
        Some(Arg::Value(name)) => parse_command(&name.string()?, &mut parser),
        Some(other) => Err(other.unexpected().into()),
    }
}

fn parse_command(name: &str, parser: &mut Parser) -> Result<Command> {
    match name {
        "help" => Ok(Command::Help),
        "tidy" => match parser.next()? {
            None => Ok(Command::Tidy),
            Some(Arg::Short('h') | Arg::Long("help")) => Ok(Command::Help),
            Some(other) => Err(other.unexpected().into()),
        },
        "test" => parse_test(parser),
        "servers" => parse_servers(parser),
        "venv" => parse_venv(parser),
        "bench" => Ok(Command::Bench(BenchOptions {
            args: parser.raw_args()?.collect(),
        })),
        "fuzz" => parse_fuzz(parser),
        BOUND_EXEC => parse_bound_exec(parser),
        other => Err(anyhow!("unknown command `{other}`; see `cargo xtask --help`")),
    }
}

fn parse_test(parser: &mut Parser) -> Result<Command> {
    let mut options = TestOptions::default();
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Short('h') | Arg::Long("help") => return Ok(Command::Help),
            Arg::Long("fast") => options.fast = true,
            Arg::Long("slow") => options.servers.extend([ServerKind::Garage, ServerKind::Ceph]),
            Arg::Long("servers") => parse_list(&mut options.servers, &parser.value()?.string()?)?,
            Arg::Long("install") => options.install = true,
            Arg::Long("torch") => options.torch = true,
            Arg::Long("browser") => options.browser = true,
            Arg::Long("peers") => options.peers = true,
            Arg::Long("torch-tests") => options.torch_tests = Some(parser.value()?.into()),
            Arg::Long("filter") => options.filter = Some(parser.value()?.string()?),
            Arg::Long("only") => parse_list(&mut options.only, &parser.value()?.string()?)?,
            Arg::Long("skip") => parse_list(&mut options.skip, &parser.value()?.string()?)?,
            Arg::Long("keep-going") => options.keep_going = true,
            Arg::Long("list") => options.list = true,
            other => return Err(other.unexpected().into()),
        }
    }
    // SeaweedFS runs in every lane; naming it here is no error, only needless.
    options.servers.retain(|kind| *kind != ServerKind::SeaweedFs);
    Ok(Command::Test(options))
}

fn parse_servers(parser: &mut Parser) -> Result<Command> {
    let mut kind = None;
    let mut install = false;
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Short('h') | Arg::Long("help") => return Ok(Command::Help),
            Arg::Long("install") => install = true,
            Arg::Value(name) if kind.is_none() => kind = Some(name.string()?.parse()?),
            other => return Err(other.unexpected().into()),
        }
    }
    let kind = kind.ok_or_else(|| anyhow!("which server? seaweedfs, garage or ceph"))?;
    Ok(Command::Servers(ServersOptions { kind, install }))
}

fn parse_venv(parser: &mut Parser) -> Result<Command> {
    let mut options = VenvOptions::default();
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Short('h') | Arg::Long("help") => return Ok(Command::Help),
            Arg::Long("release") => options.release = true,
            Arg::Long("torch") => options.torch = true,
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Command::Venv(options))
}

fn parse_fuzz(parser: &mut Parser) -> Result<Command> {
    let mut options = FuzzOptions {
        targets: Vec::new(),
        seconds: 60,
    };
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Short('h') | Arg::Long("help") => return Ok(Command::Help),
            Arg::Long("seconds") => options.seconds = parser.value()?.parse()?,
            Arg::Value(name) => options.targets.push(name.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Command::Fuzz(options))
}

fn parse_bound_exec(parser: &mut Parser) -> Result<Command> {
    let mut args = parser.raw_args()?;
    let (Some(pid), Some(program)) = (args.next(), args.next()) else {
        bail!("{BOUND_EXEC} is for internal use");
    };
    let parent_pid = pid.parse()?;
    Ok(Command::BoundExec(BoundExec {
        parent_pid,
        program,
        args: args.collect(),
    }))
}

/// Adds the names of a comma-separated list.
fn parse_list<T: FromStr<Err = anyhow::Error>>(list: &mut Vec<T>, text: &str) -> Result<()> {
    for name in text.split(',').filter(|name| !name.is_empty()) {
        list.push(name.parse()?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command> {
        parse(line.split(' ').map(OsString::from))
    }

    #[test]
    fn test_options_are_read() {
        let line =
            "xtask test --slow --filter cache --only rust,pytest --keep-going --install --torch-tests a/b";
        let Command::Test(options) = parsed(line).unwrap() else {
            panic!("not a test command")
        };
        assert_eq!(options.servers, [ServerKind::Garage, ServerKind::Ceph]);
        assert_eq!(options.filter.as_deref(), Some("cache"));
        assert_eq!(options.only, [StepName::Rust, StepName::Pytest]);
        assert_eq!(options.torch_tests.as_deref(), Some("a/b".as_ref()));
        assert!(options.keep_going && options.install && !options.fast);
    }

    #[test]
    fn unknown_names_are_refused() {
        for line in [
            "xtask tset",
            "xtask test --only rst",
            "xtask servers minio",
            "xtask servers",
            "xtask tidy x",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }

    #[test]
    fn bench_arguments_pass_through_untouched() {
        let Command::Bench(options) = parsed("xtask bench --help -- --fast").unwrap() else {
            panic!("not a bench command")
        };
        assert_eq!(options.args, ["--help", "--", "--fast"]);
    }

    #[test]
    fn bound_exec_keeps_the_flags_of_its_program() {
        let Command::BoundExec(bound) = parsed("xtask bound-exec 7 weed server -s3").unwrap() else {
            panic!("not a bound-exec command")
        };
        assert_eq!((bound.parent_pid, bound.program.to_str()), (7, Some("weed")));
        assert_eq!(bound.args, ["server", "-s3"]);
    }
}
