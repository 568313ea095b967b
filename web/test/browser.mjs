// The planner's page in a real browser: what people do with it, compared with what the command line says.
//
//   node test/browser.mjs --forebay PROGRAM --browser PROGRAM --screenshots FOLDER
//
// `cargo xtask test --browser` builds the program, finds the browser and runs this. Each test starts from a fresh page; at the end
// nothing may have been said on the console, and no other host may have been asked.

import "./browser/inputs.mjs";
import "./browser/refused.mjs";
import "./browser/results.mjs";
import "./browser/screens.mjs";
