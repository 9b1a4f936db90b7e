//! The macros of [`idem-runtime`](https://docs.rs/idem-runtime), which re-exports them.

mod canonical;
mod errors;
mod fingerprint;
mod floats;
mod idempotent;
mod manifest;
mod suggest;

/// Makes an async function idempotent: one owner at a time per key, and a stored result for every retry.
///
/// The options and the guarantees are documented at the re-export in `idem_runtime`:
/// [`idem_runtime::idempotent`](https://docs.rs/idem-runtime/latest/idem_runtime/attr.idempotent.html).
#[proc_macro_attribute]
pub fn idempotent(
    options: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    idempotent::expand(options.into(), &item.into()).into()
}

/// Derives `idem_runtime::Fingerprint`, the canonical form of a request.
///
/// Options in `#[fingerprint(...)]`:
///
/// | on | option | effect |
/// | --- | --- | --- |
/// | type | `name = "..."` | wraps the canonical form in a map with that one name |
/// | type | `bound = "..."` | replaces the inferred bounds |
/// | type | `crate = path` | path of the runtime |
/// | field | `skip` | leaves the field out |
/// | field | `default` | leaves the field out if it equals its default |
/// | field, variant | `rename = "..."` | replaces the name in the canonical form |
/// | field | `with = path` | encodes the field with a `fn(&T, &mut Encoder)` |
/// | field | `float` | accepts `f32` and `f64` |
#[proc_macro_derive(Fingerprint, attributes(fingerprint))]
pub fn derive_fingerprint(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    fingerprint::derive(input.into()).into()
}
