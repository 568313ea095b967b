//! Data sets exchanged with the libraries of other loaders: what they write is streamed, what `forebay pack` writes they read. And the safetensors
//! library's own tests, against the interface of that library that Forebay has; and torch.distributed.checkpoint by its own storage and by Forebay's, side by side.
//!
//! The libraries are those of the benchmarks, in the same environments under `target/bench`, which `bench/harness/tools.py` makes. They get the
//! package of this checkout from a folder of its own, so that the environments hold what their requirements say and nothing else. TensorFlow
//! wants versions of its own of what others need, so it has an environment to itself, and the tests are run once in each.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};

use crate::test::Session;
use crate::venv::{self, WheelProfile, python_tool};

/// Environments, and the tests that are run in each.
const RUNS: [(&str, &[&str]); 2] = [
    (
        "stream",
        &[
            "test_wds",
            "test_mds",
            "test_parquet",
            "test_litdata",
            "test_tokens",
            "test_files",
        ],
    ),
    ("tf", &["test_tfrecord"]),
];

/// Spark, and the tests that are run with it where there is a Java for it to run in.
const SPARK: (&str, &[&str]) = ("spark", &["test_spark"]);

/// Programs that the tests call besides `forebay` itself.
const EXAMPLES: [&str; 2] = ["mds_peer", "wds_peer"];

/// Builds what is tested, installs those it is tested with, and runs all tests.
pub(super) fn run(session: &mut Session<'_>) -> Result<()> {
    session.venv()?;
    let runner = session.runner;
    let root = runner.workspace().root();
    let target = runner.workspace().target();
    runner.run(&mut runner.cargo(&["build", "--locked", "--package", "forebay-cli"]))?;
    let mut examples = runner.cargo(&["build", "--locked", "--package", "forebay-data"]);
    for name in EXAMPLES {
        examples.args(["--example", name]);
    }
    runner.run(&mut examples)?;
    let package = target.join("peers/package");
    venv::unpack_wheel(runner, WheelProfile::Dev, &package)?;
    let spark = has_java(session).then_some(SPARK);
    let runs: Vec<_> = RUNS.into_iter().chain(spark).collect();
    let mut tools = python_tool(runner, "python");
    tools
        .args(["-m", "harness.tools"])
        .args(runs.iter().map(|(name, _)| name))
        .arg(SAFETENSORS_ENVIRONMENT);
    runner.run(tools.current_dir(root.join("bench")))?;
    for (name, modules) in runs {
        run_in(session, name, modules, &package)?;
    }
    run_safetensors(session, &package)?;
    run_dcp(session, &package)?;
    run_dcp_of_torch(session, &package)
}

/// Whether Spark can run here; says so where it cannot.
fn has_java(session: &Session<'_>) -> bool {
    let mut java = session.runner.command("java");
    let has_java = java
        .arg("-version")
        .output()
        .is_ok_and(|output| output.status.success());
    if !has_java {
        eprintln!("peers: no java, so nothing is exchanged with Spark");
    }
    has_java
}

/// Environment with torch and the safetensors library, made from `bench/requirements-load.txt`.
const SAFETENSORS_ENVIRONMENT: &str = "load";

/// Fetches the source distribution of the library, which has its tests, and runs them.
fn run_safetensors(session: &Session<'_>, package: &Path) -> Result<()> {
    if session.options.filter.is_some() {
        // The filter is one of names of the other tests.
        return Ok(());
    }
    let runner = session.runner;
    let root = runner.workspace().root();
    let requirements = std::fs::read_to_string(root.join("bench/requirements-load.txt"))
        .context("cannot read the requirements of the suite `load`")?;
    let pinned = requirements
        .lines()
        .find(|line| line.starts_with("safetensors=="))
        .and_then(|line| line.split_whitespace().next())
        .ok_or_else(|| anyhow!("bench/requirements-load.txt does not name safetensors"))?;
    let folder = runner.workspace().target().join("peers/safetensors");
    let sdist = folder.join(format!("{}.tar.gz", pinned.replace("==", "-")));
    if !sdist.exists() {
        // To learn its name, pip asks the build backend, which is in this environment already.
        let mut download = python_tool(runner, "python");
        download
            .args([
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--no-build-isolation",
            ])
            .args(["--no-binary", "safetensors", "--dest"])
            .arg(&folder)
            .arg(pinned);
        runner.run(&mut download)?;
    }
    let python = root.join(format!("target/bench/venv-{SAFETENSORS_ENVIRONMENT}/bin/python"));
    runner.run(
        runner
            .command(python)
            .env("PYTHONPATH", package)
            .env_remove("PYTHONHOME")
            .arg(root.join("crates/forebay-python/tests/peers/safetensors_suite.py"))
            .arg(&sdist),
    )
}

/// Runs torch.distributed.checkpoint by its own storage and by ours, side by side.
fn run_dcp(session: &Session<'_>, package: &Path) -> Result<()> {
    if session.options.filter.is_some() {
        return Ok(());
    }
    let runner = session.runner;
    let root = runner.workspace().root();
    let python = root.join(format!("target/bench/venv-{SAFETENSORS_ENVIRONMENT}/bin/python"));
    runner.run(
        runner
            .command(python)
            .env("PYTHONPATH", package)
            .env_remove("PYTHONHOME")
            .arg(root.join("crates/forebay-python/tests/peers/dcp_suite.py")),
    )
}

/// Runs torch's own tests of distributed checkpoints, where its sources are: the wheel has none.
fn run_dcp_of_torch(session: &Session<'_>, package: &Path) -> Result<()> {
    let Some(tests) = &session.options.torch_tests else {
        return Ok(());
    };
    let runner = session.runner;
    let root = runner.workspace().root();
    let target = runner.workspace().target();
    let python = root.join(format!("target/bench/venv-{SAFETENSORS_ENVIRONMENT}/bin/python"));
    let suite = root.join("crates/forebay-python/tests/peers");
    let imports = target.join("peers/torch-imports");
    venv::install_into(runner, &suite.join("requirements-torch.txt"), &python, &imports)?;
    let paths = std::env::join_paths([package, &imports]).context("a path has a colon in it")?;
    runner.run(
        runner
            .command(python)
            .env("PYTHONPATH", paths)
            .env_remove("PYTHONHOME")
            .arg(suite.join("dcp_torch_suite.py"))
            .arg(tests)
            .arg("--logs")
            .arg(target.join("peers/torch-tests")),
    )
}

/// Runs some of the tests in one environment.
fn run_in(session: &Session<'_>, environment: &str, modules: &[&str], package: &Path) -> Result<()> {
    let runner = session.runner;
    let root = runner.workspace().root();
    let target = runner.workspace().target();
    let python = root.join(format!("target/bench/venv-{environment}/bin/python"));
    let mut command = runner.command(python);
    command
        .env("PYTHONPATH", package)
        .env_remove("PYTHONHOME")
        .arg(root.join("crates/forebay-data/tests/peers/run.py"))
        .arg("--programs")
        .arg(target.join("debug"));
    if let Some(filter) = &session.options.filter {
        command.args(["--filter", filter]);
    }
    runner.run(command.args(modules))
}
