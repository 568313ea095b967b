//! The built `forebay` binary, as users and scripts see it: output, exit status, and what is left behind.

mod bad_input;
mod checkpoints;
mod config;
mod copying;
mod datasets;
mod devices;
mod interrupts;
mod listing;
mod loading;
mod loading_checkpoints;
mod manifests;
mod measuring;
mod packing;
mod pages;
mod pickles;
mod plan;
mod remote;
mod removing;
mod sandbox;
mod secrets;
mod serve;
mod streaming;
mod streaming_told;
mod stub;
mod terminal;
