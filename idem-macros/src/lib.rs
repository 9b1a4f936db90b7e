//! The macros of [`idem-runtime`](https://docs.rs/idem-runtime), which re-exports them.

mod canonical;
mod errors;
mod fingerprint;
mod idempotent;
mod suggest;

/// Makes an async function idempotent: one owner at a time per key, and a stored result for every retry.
///
/// The options, what they guarantee and what they do not are documented where `idem_runtime` re-exports this:
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
/// On the type: `name = "..."` wraps its form in a map with that one name, `bound = "..."` replaces the inferred
/// bounds, `crate = path` says where the runtime is. On a field: `skip` leaves it out, `default` leaves it out while it
/// equals its default, `rename = "..."` gives it another name, `with = path` has a `fn(&T, &mut Encoder)` write it, and
/// `float` accepts `f32` and `f64`. On a variant: `rename = "..."`.
#[proc_macro_derive(Fingerprint, attributes(fingerprint))]
pub fn derive_fingerprint(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    fingerprint::derive(input.into()).into()
}
