//! The web page of `forebay serve`: its types, its pure parts, and all of it in a real browser.
//!
//! What the checks need is installed by npm into `web/node_modules`, from versions and hashes of `web/package-lock.json`; a stamp file
//! remembers for which. The browser is the machine's own: none is downloaded. Screenshots land in `target/web-screenshots`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::env;
use crate::test::Session;
use crate::tools;

/// Where Debian and Ubuntu put it.
const CHROMIUM: &str = "/usr/bin/chromium";

/// How to get the programs the checks need.
const INSTALL_HINT: &str = "on Debian and Ubuntu: apt-get install nodejs npm";

/// Why nothing of the page can be checked here, if so.
pub(super) fn missing() -> Option<String> {
    (!tools::on_path("node")).then(|| format!("node is not installed; {INSTALL_HINT}"))
}

/// Checks types and the parts that need no browser.
pub(super) fn check(session: &Session<'_>) -> Result<()> {
    let runner = session.runner;
    let web = runner.workspace().root().join("web");
    let mut unit = runner.command("node");
    unit.arg("--test").args(unit_tests(&web)?).current_dir(&web);
    runner.run(&mut unit)?;
    if !tools::on_path("npm") {
        println!("types are not checked: npm is not installed; {INSTALL_HINT}");
        return Ok(());
    }
    install(session, &web)?;
    let mut types = runner.command(web.join("node_modules/.bin/tsc"));
    runner.run(types.arg("--noEmit").current_dir(&web))
}

/// The tests that node runs by itself; none would be a mistake, which node does not notice.
fn unit_tests(web: &Path) -> Result<Vec<PathBuf>> {
    let folder = web.join("test/unit");
    let mut tests = Vec::new();
    for entry in std::fs::read_dir(&folder).context("cannot list the tests of the page")? {
        let path = entry.context("cannot list the tests of the page")?.path();
        if path.to_string_lossy().ends_with(".test.mjs") {
            tests.push(path);
        }
    }
    tests.sort();
    if tests.is_empty() {
        bail!("there are no tests in {}", folder.display());
    }
    Ok(tests)
}

/// Does what people do.
pub(super) fn run(session: &Session<'_>) -> Result<()> {
    let browser = find_browser()?;
    for program in ["node", "npm"] {
        if !tools::on_path(program) {
            bail!("{program} is not installed; {INSTALL_HINT}");
        }
    }
    let runner = session.runner;
    let web = runner.workspace().root().join("web");
    install(session, &web)?;
    runner.run(&mut runner.cargo(&["build", "--locked", "--package", "forebay-cli"]))?;
    let target = runner.workspace().target();
    let mut command = runner.command("node");
    command
        .arg("test/browser.mjs")
        .arg("--forebay")
        .arg(target.join("debug/forebay"))
        .arg("--browser")
        .arg(browser)
        .arg("--screenshots")
        .arg(target.join("web-screenshots"))
        .current_dir(&web);
    runner.run(&mut command)
}

/// The browser that was named, or Debian's.
fn find_browser() -> Result<PathBuf> {
    let named = std::env::var_os(env::TEST_BROWSER).filter(|path| !path.is_empty());
    let path = named.map_or_else(|| PathBuf::from(CHROMIUM), PathBuf::from);
    if !path.is_file() {
        bail!(
            "there is no browser at {}; on Debian: apt-get install chromium, elsewhere name a Chromium with {}",
            path.display(),
            env::TEST_BROWSER
        );
    }
    Ok(path)
}

/// Makes `web/node_modules` hold what the lock file says.
fn install(session: &Session<'_>, web: &Path) -> Result<()> {
    let runner = session.runner;
    let lock =
        std::fs::read_to_string(web.join("package-lock.json")).context("cannot read package-lock.json")?;
    let stamp = web.join("node_modules/forebay-stamp.json");
    if std::fs::read_to_string(&stamp).is_ok_and(|made| made == lock) {
        return Ok(());
    }
    let mut command = runner.command("npm");
    command.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]);
    runner.run(command.current_dir(web))?;
    std::fs::write(&stamp, lock).context("cannot write the stamp of node_modules")
}
