//! Comparison of a request with the fingerprint of a record.
//!
//! A record has one digest of its whole request, which shows whether two requests are equal. If it also has digests of the
//! members, these show which of them differ.

use std::collections::BTreeMap;
use std::{fmt, fs};

use anyhow::{Context as _, bail, ensure};
use idem_runtime::fingerprint::{Json, MemberDifferences, Secret, compare_members, digest, json};
use idem_runtime::record::{Digest, MemberDigests};
use serde_json::value::RawValue;
use serde_json::{Value, json as json_value};

use crate::arguments::Explain;
use crate::input::read_file;
use crate::output::shown;

/// Version of the fingerprint that this build computes.
const VERSION: u8 = 1;

/// Result of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    /// Equal once the members that are null are left out, as a `None` is.
    EqualWithoutNulls,
    /// With the members that differ, if the record has digests of its members.
    Different(Option<MemberDifferences>),
}

impl Comparison {
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::EqualWithoutNulls => "equal without nulls",
            Self::Different(_) => "different",
        }
    }

    /// The members that differ, as JSON.
    pub(crate) fn members(&self) -> Option<Value> {
        let Self::Different(Some(members)) = self else {
            return None;
        };
        Some(json_value!({
            "changed": members.changed,
            "added": members.added,
            "removed": members.removed,
        }))
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members = match self {
            Self::Equal => {
                return f
                    .write_str("The record belongs to this request: the fingerprints are equal.");
            }
            Self::EqualWithoutNulls => {
                return f.write_str(
                    "The record belongs to this request without its members that are null: a `None` is left out of a \
                     fingerprint, and a null of JSON is not.",
                );
            }
            Self::Different(members) => members,
        };
        f.write_str(
            "The record belongs to another request: the fingerprints differ. A call with this request gets `KeyReused` \
             (over HTTP 422).",
        )?;
        let Some(members) = members else {
            return f.write_str(
                " The record has one fingerprint of its whole request, so the members that differ cannot be named: \
                 `member_digests` stores what is needed for that.",
            );
        };
        if !members.changed.is_empty() {
            write!(f, "\nOther values: {}.", names(&members.changed))?;
        }
        if !members.added.is_empty() {
            write!(f, "\nOnly this request has: {}.", names(&members.added))?;
            if members.count() == members.added.len() {
                f.write_str(
                    " If a new build has added it to the request type, make it an `Option`, or write \
                     `#[fingerprint(default)]`: a request without it keeps its fingerprint.",
                )?;
            }
        }
        match members.removed {
            0 if members.count() == 0 => f.write_str(
                "\nEach member is equal; the requests differ in how they are put together.",
            ),
            0 => Ok(()),
            1 => f.write_str(
                "\nOnly the record's request has: one member, whose name is not stored.",
            ),
            removed => write!(
                f,
                "\nOnly the record's request has: {removed} members, whose names are not stored."
            ),
        }
    }
}

/// Names with commas between them.
fn names(names: &[String]) -> String {
    let names: Vec<_> = names
        .iter()
        .map(|name| format!("`{}`", shown(name)))
        .collect();
    names.join(", ")
}

/// Compares the request that the command line names with the fingerprint of a record, and with the digests of its
/// members. `None` without a request.
///
/// # Errors
/// If the request is no JSON, if the fingerprint cannot be compared, or if the secret is missing or another one.
pub(crate) fn compare(
    explain: &Explain,
    stored: &Digest,
    members: Option<&MemberDigests>,
) -> anyhow::Result<Option<Comparison>> {
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
    let stored = Stored {
        fingerprint: stored,
        members,
        target: explain.http.as_deref().map(target).transpose()?,
        secret: secret.as_ref(),
    };
    let request = read_file(path)?;
    if stored.is_of(&request)? {
        return Ok(Some(Comparison::Equal));
    }
    // The fingerprint was computed, so the text is valid and not too deep for a recursion.
    let without_nulls = without_nulls(serde_json::from_str(&request)?)?;
    if stored.is_of(&without_nulls)? {
        return Ok(Some(Comparison::EqualWithoutNulls));
    }
    // Nulls that stand for `None` are no differences.
    let all = stored.differences(&request)?;
    let fewer = stored.differences(&without_nulls)?;
    let fewest = [all, fewer]
        .into_iter()
        .flatten()
        .min_by_key(MemberDifferences::count);
    Ok(Some(Comparison::Different(fewest)))
}

/// Method, path and query.
type Target<'a> = (&'a str, &'a str, Option<&'a str>);

/// Fingerprint and digests of a record's request, with which other requests are compared.
struct Stored<'a> {
    fingerprint: &'a Digest,
    members: Option<&'a MemberDigests>,
    target: Option<Target<'a>>,
    secret: Option<&'a Secret>,
}

impl Stored<'_> {
    fn is_of(&self, request: &str) -> anyhow::Result<bool> {
        let plain = match self.target {
            Some(target) => digest(&of_http(target, request)),
            None => digest(&json(request.as_bytes())),
        };
        let plain = plain.context("the request has no fingerprint")?;
        is_stored(self.fingerprint, &plain, self.secret)
    }

    fn differences(&self, request: &str) -> anyhow::Result<Option<MemberDifferences>> {
        let (Some(members), Some(secret)) = (self.members, self.secret) else {
            return Ok(None);
        };
        let fingerprint = self.fingerprint;
        let found = match self.target {
            Some(target) => {
                let request = of_http(target, request);
                compare_members(members, fingerprint, &request, secret)?.map(with_names_of_http)
            }
            None => compare_members(members, fingerprint, &json(request.as_bytes()), secret)?,
        };
        Ok(found)
    }
}

/// Value that the HTTP layer fingerprints for a request with this JSON body.
fn of_http<'a>(
    (method, path, query): Target<'a>,
    body: &'a str,
) -> (&'a str, &'a str, Option<&'a str>, &'static [u8], Json<'a>) {
    (
        method,
        path,
        query,
        b"application/json",
        json(body.as_bytes()),
    )
}

/// Names the parts of an HTTP request, which have numbers in its fingerprint.
fn with_names_of_http(mut differences: MemberDifferences) -> MemberDifferences {
    for name in differences.changed.iter_mut().chain(&mut differences.added) {
        let (part, rest) = name.split_once('.').unwrap_or((name, ""));
        let part = match part {
            "0" => "the method",
            "1" => "the path",
            "2" => "the query",
            "3" => "the content type",
            _ if rest.is_empty() => "the body",
            _ => rest,
        };
        *name = part.to_owned();
    }
    differences
}

/// Parses a method and a target.
fn target(text: &str) -> anyhow::Result<Target<'_>> {
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
