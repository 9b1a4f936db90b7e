//! URLs of servers, and the certificates that they name. The driver takes certificates beside a URL, not in it.

use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo};

use super::errors;
use crate::error::{StoreError, StoreErrorKind};

/// Parameter of a URL: certificates of authorities that are trusted instead of those that the system trusts.
const AUTHORITY: &str = "ssl-ca";
/// Parameters of a URL: certificate of this client, and its key.
const IDENTITY: [&str; 2] = ["ssl-cert", "ssl-key"];

/// Server of a URL.
pub(super) struct Endpoint {
    /// Without the certificates.
    info: ConnectionInfo,
    pub(super) certificates: Certificates,
}

/// Certificates that a URL names, in PEM form.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Certificates {
    authority: Option<Vec<u8>>,
    identity: Option<[Vec<u8>; 2]>,
}

impl Endpoint {
    /// Parses a URL, and reads the files that it names.
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let invalid = || (ErrorKind::InvalidClientConfig, "Redis URL did not parse");
        let mut url = redis::parse_redis_url(url).ok_or_else(|| errors::error(invalid().into()))?;
        let parameters = url.query_pairs().into_owned();
        let (files, others): (Vec<_>, Vec<_>) = parameters.partition(|(name, _)| is_file(name));
        url.set_query(None);
        if !others.is_empty() {
            url.query_pairs_mut().extend_pairs(others);
        }
        let mut endpoint = Self {
            info: url.into_connection_info().map_err(errors::error)?,
            certificates: Certificates::default(),
        };
        if !endpoint.is_encrypted() && !files.is_empty() {
            return Err(StoreError::new(
                StoreErrorKind::Other,
                "the URL names certificates, but its connection is not encrypted; write `rediss://` instead of `redis://`",
            ));
        }
        endpoint.certificates = Certificates::read(&files)?;
        Ok(endpoint)
    }

    /// Parses URLs of one kind of servers. If some of them name certificates, these are used for all.
    #[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
    pub(super) fn parse_all<'a>(
        urls: impl IntoIterator<Item = &'a str>,
    ) -> Result<Vec<Self>, StoreError> {
        let mut endpoints: Vec<_> = urls
            .into_iter()
            .map(Self::parse)
            .collect::<Result<_, _>>()?;
        let mut named = endpoints.iter().map(|it| &it.certificates);
        let Some(certificates) = named.find(|it| !it.is_empty()).cloned() else {
            return Ok(endpoints);
        };
        for endpoint in &mut endpoints {
            endpoint.trust(&certificates);
            if endpoint.is_encrypted() && endpoint.certificates != certificates {
                return Err(StoreError::new(
                    StoreErrorKind::Other,
                    "the URLs name different certificates; name one and the same in all of them, or in the first one alone",
                ));
            }
        }
        Ok(endpoints)
    }

    pub(super) fn is_encrypted(&self) -> bool {
        matches!(self.info.addr(), ConnectionAddr::TcpTls { .. })
    }

    /// Uses these certificates if the URL names none. A connection that is not encrypted needs none.
    #[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
    pub(super) fn trust(&mut self, certificates: &Certificates) {
        if self.certificates.is_empty() && self.is_encrypted() {
            self.certificates = certificates.clone();
        }
    }

    /// Information with which the driver connects.
    pub(super) fn connection_info(self) -> Result<ConnectionInfo, StoreError> {
        #[cfg(feature = "tls-rustls")]
        if self.is_encrypted() {
            provide_cryptography();
        }
        if self.certificates.is_empty() {
            return Ok(self.info);
        }
        #[cfg(feature = "tls-rustls")]
        return redis::Client::build_with_tls(self.info, self.certificates.for_driver())
            .map(|client| client.get_connection_info().clone())
            .map_err(|error| errors::unusable_files().with_source(error));
        #[cfg(not(feature = "tls-rustls"))]
        Err(StoreError::new(
            StoreErrorKind::Other,
            crate::store::tls::NOT_COMPILED,
        ))
    }
}

impl Certificates {
    fn read(files: &[(String, String)]) -> Result<Self, StoreError> {
        let read = |parameter: &str| match files.iter().find(|(name, _)| name == parameter) {
            // As in the URLs of PostgreSQL and MySQL.
            Some((_, pem)) if pem.trim_start().starts_with("-----BEGIN") => {
                Ok(Some(pem.clone().into_bytes()))
            }
            Some((_, path)) => match std::fs::read(path) {
                Ok(pem) => Ok(Some(pem)),
                Err(error) => Err(crate::store::unreadable_file(parameter).with_source(error)),
            },
            None => Ok(None),
        };
        let authority = read(AUTHORITY)?;
        let holds_certificate = |pem: &Vec<u8>| {
            let begin = b"-----BEGIN CERTIFICATE-----";
            pem.windows(begin.len()).any(|it| it == begin)
        };
        // The driver would trust nobody, and say that the server's certificate is not trusted.
        if authority.as_ref().is_some_and(|it| !holds_certificate(it)) {
            return Err(errors::unusable_files());
        }
        let identity = match IDENTITY.map(read) {
            [Ok(Some(certificate)), Ok(Some(key))] => Some([certificate, key]),
            [Ok(None), Ok(None)] => None,
            [Err(error), _] | [_, Err(error)] => return Err(error),
            _ => return Err(errors::unusable_files()),
        };
        Ok(Self {
            authority,
            identity,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    #[cfg(feature = "tls-rustls")]
    pub(super) fn for_driver(self) -> redis::TlsCertificates {
        let identity = self
            .identity
            .map(|[client_cert, client_key]| redis::ClientTlsConfig {
                client_cert,
                client_key,
            });
        redis::TlsCertificates {
            client_tls: identity,
            root_cert: self.authority,
        }
    }
}

fn is_file(parameter: &str) -> bool {
    parameter == AUTHORITY || IDENTITY.contains(&parameter)
}

/// Sees that the process has a default provider of cryptography, which the driver takes. Without one, the driver panics if
/// the program contains several. A provider that the application has installed stays.
#[cfg(feature = "tls-rustls")]
fn provide_cryptography() {
    use rustls::crypto::{CryptoProvider, ring};
    if CryptoProvider::get_default().is_none() {
        // Fails if somebody else has installed one meanwhile.
        let _ = ring::default_provider().install_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(url: &str) -> StoreError {
        let parsed = Endpoint::parse(url).and_then(Endpoint::connection_info);
        parsed.map(drop).expect_err(url)
    }

    #[test]
    fn a_mistake_in_the_certificates_of_a_url_is_named() {
        for (url, says) in [
            ("redis://db/?ssl-ca=Cargo.toml", "write `rediss://`"),
            ("unix:///run/redis?ssl-ca=Cargo.toml", "write `rediss://`"),
            ("rediss://db/?ssl-ca=/nowhere/ca.pem", "`ssl-ca`"),
            (
                "rediss://db/?ssl-cert=Cargo.toml&ssl-key=/nowhere",
                "`ssl-key`",
            ),
            ("rediss://db/?ssl-ca=Cargo.toml", "in PEM form"),
            ("rediss://db/?ssl-cert=Cargo.toml", "name both"),
            ("rediss://db/?ssl-key=Cargo.toml", "name both"),
            (
                "rediss://db/?ssl-cert=Cargo.toml&ssl-key=Cargo.toml",
                "in PEM form",
            ),
        ] {
            // Without TLS, the driver refuses the URL.
            let says = match url.starts_with("rediss") && !cfg!(feature = "tls-rustls") {
                true => "`tls-rustls`",
                false => says,
            };
            let problem = problem(url);
            assert_eq!(problem.kind(), StoreErrorKind::Other, "{url}: {problem:?}");
            assert!(problem.to_string().contains(says), "{url}: {problem}");
            assert!(!problem.is_retryable());
        }
    }

    #[test]
    fn parameters_of_the_driver_are_kept() {
        let url = "redis://ann:secret@db/3?protocol=resp3";
        let endpoint = Endpoint::parse(url).expect("it is valid");
        let settings = endpoint.connection_info().expect("it is valid");
        let settings = settings.redis_settings();
        assert_eq!(settings.db(), 3);
        assert_eq!(settings.protocol(), redis::ProtocolVersion::RESP3);
        assert_eq!(settings.password(), Some("secret"));
    }

    #[test]
    #[cfg(all(feature = "tls-rustls", feature = "redis-sentinel"))]
    fn certificates_of_one_url_are_used_for_all() {
        let pem = "-----BEGIN%20CERTIFICATE-----";
        let one = format!("rediss://a/?ssl-ca={pem}&protocol=resp3");
        let all = Endpoint::parse_all([&*one, "rediss://b/", "redis://c/"]);
        let all = all.expect("they are valid");
        assert!(all[0].certificates == all[1].certificates);
        assert!(!all[1].certificates.is_empty());
        assert!(all[2].certificates.is_empty());

        let other = format!("rediss://a/?ssl-ca={pem}other");
        let Err(error) = Endpoint::parse_all([&*one, &*other]) else {
            panic!("they differ");
        };
        assert!(error.to_string().contains("different certificates"));
    }
}
