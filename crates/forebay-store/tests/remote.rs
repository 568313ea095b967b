//! Remote stores: what they do on a server of our own and on a real one, where credentials and settings come from, and what
//! is said when something is wrong.
//!
//! Tests whose names begin with `server_` also run against the S3 server that `FOREBAY_TEST_S3_*` names.

#[path = "remote/clouds.rs"]
mod clouds;
#[path = "remote/connections.rs"]
mod connections;
#[path = "remote/credentials.rs"]
mod credentials;
#[path = "remote/kms.rs"]
mod kms;
#[path = "remote/objects.rs"]
mod objects;
#[path = "remote/probes.rs"]
mod probes;
#[path = "remote/refusals.rs"]
mod refusals;
#[path = "remote/renewals.rs"]
mod renewals;
mod support;
