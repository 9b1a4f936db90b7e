//! Comparison of a request with the fingerprint of a record.
//!
//! A record has one digest of its whole request. It shows whether two requests are equal, and nothing about their
//! members.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, bail, ensure};
use idem_runtime::Fingerprint;
use idem_runtime::fingerprint::{Secret, digest, json};
use idem_runtime::record::Digest;
use serde_json::value::RawValue;

use crate::arguments::Explain;
use crate::input::read_file;

/// Version of the fingerprint that this build computes.
const VERSION: u8 = 1;

/// Result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    /// Equal once the members that are null are left out, as a `None` is.
    EqualWithoutNulls,
    Different,
}

impl Comparison {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::EqualWithoutNulls => "equal without nulls",
            Self::Different => "different",
        }
    }

    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Self::Equal => "The record belongs to this request: the fingerprints are equal.",
            Self::EqualWithoutNulls => {
                "The record belongs to this request without its members that are null: a `None` is left out of a \
                 fingerprint, and a null of JSON is not."
            }
            Self::Different => {
                "The record belongs to another request: the fingerprints differ. A call with this request gets \
                 `KeyReused` (over HTTP 422). The record has one fingerprint of its whole request, so the members that \
                 differ cannot be named."
            }
        }
    }
}

/// Compares the request that the command line names with the fingerprint of a record. `None` without a request.
///
/// # Errors
/// If the request is no JSON, if the fingerprint cannot be compared, or if the secret is missing or another one.
pub(crate) fn compare(explain: &Explain, stored: &Digest) -> anyhow::Result<Option<Comparison>> {
    let Some(path) = &explain.request else {
        return Ok(None);
    };
    ensure!(
        stored.version() == VERSION,
        "the record's fingerprint has version {}, but this command knows only version {VERSION}: update it",
        stored.version()
    );
    let secret = match &explain.secret_file {
        None => None,
        Some(path) => {
            let bytes =
                fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            let bytes = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
            Some(Secret::new(bytes.strip_suffix(b"\r").unwrap_or(bytes))?)
        }
    };
    let target = explain.http.as_deref().map(target).transpose()?;
    let request = read_file(path)?;
    let as_stored = |text: &str| -> anyhow::Result<bool> {
        let json = json(text.as_bytes());
        let plain = match target {
            Some(target) => {
                digest_of(&(target.0, target.1, target.2, &b"application/json"[..], json))
            }
            None => digest_of(&json),
        };
        is_stored(stored, &plain?, secret.as_ref())
    };
    if as_stored(&request)? {
        return Ok(Some(Comparison::Equal));
    }
    // The fingerprint was computed, so the text is valid and not too deep for a recursion.
    let without_nulls = without_nulls(serde_json::from_str(&request)?)?;
    Ok(Some(match as_stored(&without_nulls)? {
        true => Comparison::EqualWithoutNulls,
        false => Comparison::Different,
    }))
}

fn digest_of<T: Fingerprint + ?Sized>(request: &T) -> anyhow::Result<Digest> {
    digest(request).context("the request has no fingerprint")
}

/// Method, path and query.
fn target(text: &str) -> anyhow::Result<(&str, &str, Option<&str>)> {
    let parts = text.trim().split_once(' ');
    let Some((method, target)) = parts.filter(|(_, target)| target.starts_with('/')) else {
        bail!(
            "--http is a method and a target that begins with a slash, such as 'POST /charges?a=1'"
        );
    };
    Ok(match target.split_once('?') {
        Some((path, query)) => (method, path, Some(query)),
        None => (method, target, None),
    })
}

fn is_stored(stored: &Digest, plain: &Digest, secret: Option<&Secret>) -> anyhow::Result<bool> {
    if stored.key_id() == [0; 4] {
        return Ok(stored == plain);
    }
    let Some(secret) = secret else {
        bail!(
            "the record's fingerprint is signed with the secret of the service: pass --secret-file"
        );
    };
    let signed = secret.sign_digest(plain);
    ensure!(
        signed.key_id() == stored.key_id(),
        "the record's fingerprint is signed with another secret than that in --secret-file"
    );
    Ok(signed == *stored)
}

/// Removes the members of objects that are null, at every depth. The notation of numbers stays.
fn without_nulls(value: &RawValue) -> serde_json::Result<String> {
    let text = value.get().trim();
    if text.starts_with('{') {
        let members: BTreeMap<String, &RawValue> = serde_json::from_str(text)?;
        let members = members
            .into_iter()
            .filter(|(_, value)| value.get() != "null");
        let members = members.map(|(name, value)| {
            let name = serde_json::to_string(&name)?;
            Ok(format!("{name}:{}", without_nulls(value)?))
        });
        let members: Vec<_> = members.collect::<serde_json::Result<_>>()?;
        return Ok(format!("{{{}}}", members.join(",")));
    }
    if text.starts_with('[') {
        let items: Vec<&RawValue> = serde_json::from_str(text)?;
        let items: Vec<_> = items
            .into_iter()
            .map(without_nulls)
            .collect::<serde_json::Result<_>>()?;
        return Ok(format!("[{}]", items.join(",")));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_members_are_removed_at_every_depth_and_numbers_stay() {
        let text = r#"{"b": [{"x": null, "y": 1.50}, null], "a": null, "\"": {"n": null}}"#;
        let value: &RawValue = serde_json::from_str(text).unwrap();
        let expected = r#"{"\"":{},"b":[{"y":1.50},null]}"#;
        assert_eq!(without_nulls(value).unwrap(), expected);
    }

    #[test]
    fn a_target_has_a_method_a_path_and_perhaps_a_query() {
        assert_eq!(
            target("POST /a?b=c?d").unwrap(),
            ("POST", "/a", Some("b=c?d"))
        );
        assert_eq!(target("PUT /a").unwrap(), ("PUT", "/a", None));
        for wrong in ["POST", "/a", "POST a", "POST http://host/a"] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }
}
