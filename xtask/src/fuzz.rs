//! `cargo xtask fuzz`: the targets of `fuzz/`, each for a while, with the stable compiler.
//!
//! libFuzzer needs coverage counters, which `-C passes` gives on stable; the parsers are free of unsafe code, so no sanitizer is asked for. What is found
//! interesting is kept in `target/fuzz/corpus`, what fails in `target/fuzz/artifacts`; a failing input becomes a test of its parser.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::args::FuzzOptions;
use crate::run::Runner;

/// Longest input: several times the longest text any of these parsers accepts. Where a target begins with a longer file, that.
const INPUT_BYTES_MAX: u64 = 16 << 10;

/// One input may take that long before it counts as a hang.
const INPUT_SECONDS_MAX: u32 = 10;

/// Edge coverage as libFuzzer wants it, and the switch that opens parsers to the targets.
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

/// Runs every target, or the named ones; true when none failed.
pub(crate) fn run(runner: &Runner, options: &FuzzOptions) -> Result<bool> {
    let workspace = runner.workspace();
    let folder = workspace.root().join("fuzz");
    let build = workspace.target().join("fuzz");
    let all = targets(&folder)?;
    for name in &options.targets {
        if !all.contains(name) {
            bail!("no target `{name}`; there are: {}", all.join(", "));
        }
    }
    // With the target named, build scripts and macros are built without the flags.
    let host = host(runner)?;
    let args = ["build", "--release", "--target", &host];
    runner.run(
        runner
            .cargo(&args)
            .current_dir(&folder)
            .env("CARGO_TARGET_DIR", &build)
            .env("RUSTFLAGS", RUSTFLAGS),
    )?;
    let chosen = all
        .iter()
        .filter(|name| options.targets.is_empty() || options.targets.contains(name));
    let mut passed = true;
    for name in chosen {
        let corpus = build.join("corpus").join(name);
        let artifacts = build.join("artifacts").join(name);
        for folder in [&corpus, &artifacts] {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        eprintln!("==> {name}: {} s", options.seconds);
        let program = build.join(&host).join("release").join(name);
        // Nobody finds the way into a footer by chance: what others wrote is where to begin.
        let fixtures = Some(workspace.root().join("fixtures").join(name)).filter(|folder| folder.is_dir());
        let bytes_max = match &fixtures {
            Some(folder) => longest(folder)?.max(INPUT_BYTES_MAX),
            None => INPUT_BYTES_MAX,
        };
        let status = runner.status(
            runner
                .command(program)
                .arg(&corpus)
                .args(fixtures)
                .arg(format!("-artifact_prefix={}/", artifacts.display()))
                .arg(format!("-max_total_time={}", options.seconds))
                .arg(format!("-max_len={bytes_max}"))
                .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
                .arg("-print_final_stats=1")
                .arg("-verbosity=0"),
        )?;
        passed &= status.success();
    }
    Ok(passed)
}

/// Bytes of the longest file in a folder and those within; what is cut off is seldom what its writer wrote.
fn longest(folder: &Path) -> Result<u64> {
    let mut longest = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        longest = longest.max(if entry.file_type()?.is_dir() {
            self::longest(&entry.path())?
        } else {
            entry.metadata()?.len()
        });
    }
    Ok(longest)
}

fn targets(folder: &Path) -> Result<Vec<String>> {
    let listed = fs::read_dir(folder.join("targets")).context("cannot read fuzz/targets")?;
    let mut names = Vec::new();
    for entry in listed {
        let name = entry?.file_name();
        if let Some(name) = name.to_str().and_then(|name| name.strip_suffix(".rs")) {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn host(runner: &Runner) -> Result<String> {
    let text = runner.output(runner.command("rustc").arg("-vV"))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not name its host")?.to_owned())
}
