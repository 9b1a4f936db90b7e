//! Meaning of the errors of TLS libraries. The drivers return these errors inside of their own, so only the text is left to
//! tell them apart: of rustls, and of OpenSSL behind `native-tls`.

use crate::error::StoreErrorKind;

/// Text of an error if no crate of the program has turned TLS on.
pub(super) const NOT_COMPILED: &str = "the URL asks for an encrypted connection, and this build has no TLS: turn on the feature `tls-rustls`";

const WRONG_NAME: [&str; 3] = ["not valid for name", "NotValidForName", "ostname mismatch"];
const UNTRUSTED: [&str; 2] = ["invalid peer certificate", "certificate verify failed"];
/// Alerts by which a server refuses the certificate of a client.
const REFUSED: [&str; 8] = [
    "alert: BadCertificate",
    "alert: UnsupportedCertificate",
    "alert: CertificateRe",
    "alert: CertificateExpired",
    "alert: CertificateUnknown",
    "alert: UnknownCA",
    "alert: AccessDenied",
    "alert: DecryptError",
];
/// The key of this client is not that of its certificate.
const MISMATCHED: [&str; 2] = ["keys may not be consistent", "KeyMismatch"];
/// The peer answered something other than TLS.
const PLAIN_TEXT: [&str; 1] = ["InvalidContentType"];
const INCOMPATIBLE: [&str; 3] = [
    "peer is incompatible",
    "alert: HandshakeFailure",
    "alert: ProtocolVersion",
];

/// Kind and remedy of an error of the TLS library, or `None` if another try may succeed, as after a cut connection.
pub(super) fn meaning(text: &str) -> Option<(StoreErrorKind, &'static str)> {
    let has = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    if has(&WRONG_NAME) {
        return Some((
            StoreErrorKind::Other,
            "the server's certificate is for another host name; connect by a name that is in its subjectAltName, or, to \
             PostgreSQL and MySQL, check its issuer alone (`sslmode=verify-ca`, `ssl-mode=VERIFY_CA`)",
        ));
    }
    if has(&UNTRUSTED) {
        return Some((
            StoreErrorKind::Other,
            "the server's certificate is not trusted, or has expired; trust its issuer in the system or in the URL \
             (`sslrootcert` for PostgreSQL, `ssl-ca` for MySQL and Redis), or renew the certificate",
        ));
    }
    if has(&REFUSED) {
        return Some((
            StoreErrorKind::Denied,
            "the server refused the certificate of this client, or needs one; send one that the server trusts (`sslcert` and \
             `sslkey` for PostgreSQL, `ssl-cert` and `ssl-key` for MySQL and Redis)",
        ));
    }
    if has(&MISMATCHED) {
        return Some((
            StoreErrorKind::Other,
            "the certificate of this client and its key do not belong together; name a pair (`sslcert` and `sslkey` for \
             PostgreSQL, `ssl-cert` and `ssl-key` for MySQL and Redis)",
        ));
    }
    if has(&PLAIN_TEXT) {
        return Some((
            StoreErrorKind::Other,
            "the server answered in plain text; turn TLS on at the server, or correct the port or the scheme of the URL",
        ));
    }
    if has(&INCOMPATIBLE) {
        return Some((
            StoreErrorKind::Other,
            "the server and the driver share no version or cipher of TLS; turn TLS 1.2 or later on at the server",
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_both_libraries_have_a_meaning_and_a_cut_connection_has_none() {
        use StoreErrorKind::{Denied, Other};
        for (text, kind, remedy) in [
            ("invalid peer certificate: UnknownIssuer", Other, "`ssl-ca`"),
            (
                "invalid peer certificate: certificate not valid for name \"db\"; certificate is only valid for db.test",
                Other,
                "subjectAltName",
            ),
            (
                "invalid peer certificate: NotValidForName",
                Other,
                "subjectAltName",
            ),
            (
                "error:0A000086:SSL routines::certificate verify failed:ssl.c: (Hostname mismatch)",
                Other,
                "subjectAltName",
            ),
            (
                "error:0A000086:SSL routines::certificate verify failed:ssl.c: (self-signed certificate)",
                Other,
                "renew",
            ),
            ("received fatal alert: UnknownCA", Denied, "`sslkey`"),
            (
                "received fatal alert: CertificateRequired",
                Denied,
                "`sslkey`",
            ),
            (
                "received fatal alert: CertificateExpired",
                Denied,
                "`sslkey`",
            ),
            ("received fatal alert: HandshakeFailure", Other, "TLS 1.2"),
            ("peer is incompatible: Tls12NotOffered", Other, "TLS 1.2"),
            ("keys may not be consistent: KeyMismatch", Other, "`sslkey`"),
            (
                "received corrupt message of type InvalidContentType",
                Other,
                "plain text",
            ),
        ] {
            let (found, message) = meaning(text).expect(text);
            assert_eq!(found, kind, "{text}: {message}");
            assert!(message.contains(remedy), "{text}: {message}");
        }
        for text in [
            "tls handshake eof",
            "received corrupt message of type Handshake(..)",
            "received fatal alert: InternalError",
            "Connection reset by peer (os error 104)",
        ] {
            assert_eq!(meaning(text), None, "{text}");
        }
    }
}
