//! The files of the page, compiled into the program: it works offline, and from any folder.

use forebay_core::{Error, ErrorKind, Result};

/// A file as it is sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asset {
    pub(super) content_type: &'static str,
    pub(super) bytes: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const IMAGE: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

macro_rules! asset {
    ($kind:expr, $file:literal) => {
        Asset {
            content_type: $kind,
            bytes: include_bytes!(concat!("../../../../web/", $file)),
        }
    };
}

macro_rules! assets {
    ($( $kind:expr, $file:literal; )*) => {
        /// Every file below `/assets/`, by name.
        const ASSETS: &[(&str, Asset)] = &[ $( ($file, asset!($kind, $file)), )* ];
    };
}

/// The planner's page.
pub(super) const PLAN_PAGE: Asset = asset!(HTML, "plan.html");

assets! {
    SCRIPT, "app.js";
    SCRIPT, "api.js";
    SCRIPT, "controls.js";
    SCRIPT, "curve.js";
    SCRIPT, "dom.js";
    SCRIPT, "explain.js";
    SCRIPT, "fields.js";
    SCRIPT, "results.js";
    SCRIPT, "scale.js";
    SCRIPT, "scenario.js";
    SCRIPT, "theme.js";
    STYLE, "style.css";
    IMAGE, "icon.svg";
    SCRIPT, "vendor/uPlot.esm.js";
    STYLE, "vendor/uPlot.min.css";
    TEXT, "vendor/uPlot.LICENSE";
}

/// The file of that name below `/assets/`.
pub(super) fn find(name: &str) -> Result<Asset> {
    let found = ASSETS.iter().find(|(known, _)| *known == name);
    found.map(|(_, asset)| *asset).ok_or_else(|| {
        let message = format!("there is no file '{}'", name.escape_debug());
        Error::new(ErrorKind::NotFound, "serve", message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_import_only_what_is_served() {
        for (name, asset) in ASSETS.iter().filter(|(name, _)| !name.starts_with("vendor/")) {
            let text = std::str::from_utf8(asset.bytes).unwrap();
            for line in text.lines().filter(|line| line.starts_with("import ")) {
                let target = line.split('"').nth(1).unwrap();
                let target = target.strip_prefix("./").unwrap();
                assert!(find(target).is_ok(), "{name} imports {target}");
            }
        }
    }

    #[test]
    fn the_page_asks_only_for_what_is_served() {
        let page = std::str::from_utf8(PLAN_PAGE.bytes).unwrap();
        let parts = page.split("/assets/").skip(1);
        let names: Vec<&str> = parts.filter_map(|part| part.split('"').next()).collect();
        assert!(names.len() > 3, "{names:?}");
        assert!(names.iter().all(|name| find(name).is_ok()), "{names:?}");
    }

    #[test]
    fn other_names_are_not_found() {
        for name in [
            "",
            "plan.html",
            "../Cargo.toml",
            "package.json",
            "test/browser.mjs",
        ] {
            assert_eq!(find(name).unwrap_err().kind(), ErrorKind::NotFound, "{name}");
        }
    }
}
