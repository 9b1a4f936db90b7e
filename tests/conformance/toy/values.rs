//! Values as they are stored, with the bugs that change them.

use idem_runtime::key::{Identity, Operation};
use idem_runtime::record::Payload;
use idem_runtime::store::ClaimRequest;
use idem_runtime::{Key, Scope};

use super::ToyStore;
use crate::bug::Bug;

impl ToyStore {
    pub(super) fn identity(&self, claim: &ClaimRequest) -> Identity {
        let mut identity = claim.identity.clone();
        let text = identity.key.as_str().to_owned();
        match self.bug {
            Some(Bug::KeyIsTrimmed) if !text.trim().is_empty() => {
                identity.key = Key::new(text.trim()).unwrap();
            }
            Some(Bug::KeyIsFolded) => identity.key = Key::new(text.to_lowercase()).unwrap(),
            Some(Bug::IdentityIsCut) => {
                identity.key = Key::new(text[..text.len().min(191)].to_owned()).unwrap();
            }
            Some(Bug::ScopeIsAscii) => {
                let plain = identity
                    .scope
                    .as_str()
                    .replace(|it: char| !it.is_ascii(), "?");
                identity.scope = Scope::from_stored(&plain);
            }
            Some(Bug::ClaimForgetsTheIdentity) => {
                identity.operation = Operation::new("unknown").unwrap();
            }
            _ => {}
        }
        identity
    }

    pub(super) fn payload(&self, payload: &Payload) -> Payload {
        let mut stored = payload.clone();
        match self.bug {
            Some(Bug::PayloadIsText) => {
                stored.bytes = String::from_utf8_lossy(&payload.bytes)
                    .into_owned()
                    .into_bytes()
                    .into();
            }
            Some(Bug::PayloadEmptyIsNone) if payload.bytes.is_empty() => {
                stored.bytes = b"null".as_slice().into();
            }
            Some(Bug::CodecIsTrimmed) => stored.codec = stored.codec.trim().to_lowercase().into(),
            _ => {}
        }
        stored
    }
}
