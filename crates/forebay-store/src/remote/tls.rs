//! Trusted certificates, and the one transport of a context for each set of them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_core::{Error, ErrorKind, Limits, Result};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::transport::Transport;

/// The transports of a context, by the certificates they trust besides those of the system: connections are shared by all stores.
#[derive(Default)]
pub(crate) struct Transports(Mutex<BTreeMap<Option<PathBuf>, Arc<Transport>>>);

impl Transports {
    /// The transport that trusts `ca_bundle`, made when there is none yet.
    pub(crate) fn get(&self, limits: &Limits, ca_bundle: Option<&PathBuf>) -> Result<Arc<Transport>> {
        let mut transports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(transport) = transports.get(&ca_bundle.cloned()) {
            return Ok(Arc::clone(transport));
        }
        let tls = client_config(ca_bundle.map(PathBuf::as_path))?;
        let transport = Arc::new(Transport::new(limits, tls));
        transports.insert(ca_bundle.cloned(), Arc::clone(&transport));
        Ok(transport)
    }
}

impl fmt::Debug for Transports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transports")
    }
}

fn client_config(ca_bundle: Option<&Path>) -> Result<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    // Certificates of the system that do not parse are no reason to trust none of them.
    let (_, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca_bundle {
        let refuse = |error: rustls::pki_types::pem::Error| {
            Error::new(
                ErrorKind::InvalidInput,
                "open",
                format!("certificate file does not parse: {error}"),
            )
            .at(path.display())
            .with_hint("AWS_CA_BUNDLE names a file with certificates in PEM form")
        };
        for certificate in CertificateDer::pem_file_iter(path).map_err(refuse)? {
            let certificate = certificate.map_err(refuse)?;
            roots.add(certificate).map_err(|error| {
                Error::new(ErrorKind::InvalidInput, "open", error.to_string()).at(path.display())
            })?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(ErrorKind::Internal, "open", error.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
