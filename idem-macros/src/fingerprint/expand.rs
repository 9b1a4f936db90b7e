//! Generates the implementation of `Fingerprint` from a model without errors.

use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::quote;
use syn::WherePredicate;
use syn::spanned::Spanned;

use super::model::{Body, Encoding, Field, Form, Model, Presence, Variant};
use crate::canonical::{Entry, encode_map, text};

/// Generates the implementation.
pub(super) fn implementation(model: &Model<'_>) -> TokenStream {
    let private = &model.private;
    let encoder = Ident::new("__encoder", Span::mixed_site());
    let wrap = model
        .wrap
        .iter()
        .map(|name| raw(private, &encoder, &head_of_one(name)));
    let body = match &model.body {
        Body::Struct(form) => {
            let pattern = pattern(form);
            let written = written(form, private, &encoder);
            quote! {
                let Self #pattern = self;
                #written
            }
        }
        Body::Enum(variants) if variants.is_empty() => quote!(match *self {}),
        Body::Enum(variants) => {
            let arms = variants.iter().map(|it| arm(it, private, &encoder));
            quote!(match self { #(#arms)* })
        }
    };
    let absent = is_absent(model);
    let header = header(model, &model.bounds);
    quote! {
        #header {
            #[inline]
            fn fingerprint(&self, #encoder: &mut #private::Encoder) {
                #(#wrap)*
                #body
            }

            #absent
        }
    }
}

/// Method `is_absent` of a newtype, which is absent if its field is. A wrapped newtype is always present.
fn is_absent(model: &Model<'_>) -> Option<TokenStream> {
    let (Body::Struct(form @ Form::Newtype(field)), None) = (&model.body, &model.wrap) else {
        return None;
    };
    let private = &model.private;
    let pattern = pattern(form);
    let value = value(field, 0, private);
    Some(quote! {
        #[inline]
        fn is_absent(&self) -> bool {
            let Self #pattern = self;
            #private::Fingerprint::is_absent(#value)
        }
    })
}

/// Generates an implementation that does nothing, to follow errors.
pub(super) fn placeholder(model: &Model<'_>) -> TokenStream {
    let private = &model.private;
    let header = header(model, &[]);
    quote! {
        #header {
            fn fingerprint(&self, _: &mut #private::Encoder) {}
        }
    }
}

fn header(model: &Model<'_>, bounds: &[WherePredicate]) -> TokenStream {
    let (ident, private) = (model.ident, &model.private);
    let mut generics = model.generics.clone();
    if !bounds.is_empty() {
        generics
            .make_where_clause()
            .predicates
            .extend(bounds.iter().cloned());
    }
    // Of a generic type, the compiler reports the type argument that lacks an implementation.
    let hidden = bounds
        .is_empty()
        .then(|| quote!(#[diagnostic::do_not_recommend]));
    let (implemented, types, condition) = generics.split_for_impl();
    quote! {
        #[automatically_derived]
        #hidden
        #[allow(deprecated)]
        impl #implemented #private::Fingerprint for #ident #types #condition
    }
}

fn arm(variant: &Variant<'_>, private: &TokenStream, encoder: &Ident) -> TokenStream {
    let (ident, form) = (variant.ident, &variant.form);
    let pattern = pattern(form);
    let (head, content) = match form {
        Form::Unit => (text(&variant.name), TokenStream::new()),
        _ => (head_of_one(&variant.name), written(form, private, encoder)),
    };
    let head = raw(private, encoder, &head);
    quote! {
        Self::#ident #pattern => {
            #head
            #content
        }
    }
}

/// Statements that encode the fields of a struct or a variant.
fn written(form: &Form<'_>, private: &TokenStream, encoder: &Ident) -> TokenStream {
    match form {
        Form::Unit => quote!(#private::Encoder::map(#encoder, 0);),
        Form::Newtype(field) => {
            let value = value(field, 0, private);
            quote!(#private::Fingerprint::fingerprint(#value, #encoder);)
        }
        Form::Tuple(fields) => {
            let len = fields.len();
            let values = fields
                .iter()
                .enumerate()
                .map(|(at, field)| value(field, at, private));
            quote! {
                #private::Encoder::array(#encoder, #len);
                #(#private::Fingerprint::fingerprint(#values, #encoder);)*
            }
        }
        Form::Named(fields) => {
            let entries = fields
                .iter()
                .enumerate()
                .map(|(at, field)| Entry {
                    name: field.name.clone(),
                    value: value(field, at, private),
                })
                .collect();
            encode_map(private, &quote!(#encoder), entries)
        }
    }
}

/// Pattern that binds the fields that are not skipped.
fn pattern(form: &Form<'_>) -> TokenStream {
    let bindings = form.fields().iter().enumerate().map(|(at, field)| {
        let (member, binding) = (&field.member, binding(field, at));
        quote!(#member: #binding,)
    });
    quote!({ #(#bindings)* .. })
}

/// Name that a field is bound to.
///
/// The compiler shows it at the type of the field, where it then reports a missing `Fingerprint`. The name resolves as
/// generated code, so that it cannot collide with names of the user or of `macro_rules!`.
fn binding(field: &Field<'_>, at: usize) -> Ident {
    let span = field.ty.span().resolved_at(Span::mixed_site());
    Ident::new(&format!("__{at}"), span)
}

/// Reference to the value that encodes the field.
fn value(field: &Field<'_>, at: usize, private: &TokenStream) -> TokenStream {
    let binding = binding(field, at);
    let written = match &field.encoding {
        Encoding::Fingerprint => quote!(#binding),
        Encoding::Float => quote!(&#private::float(#binding)),
        // The closure lets a `&String` coerce to the `&str` that the function takes.
        Encoding::With(path) => {
            let field = Ident::new("__field", Span::mixed_site());
            let encoder = Ident::new("__encoder", Span::mixed_site());
            let call = quote!(|#field, #encoder| #path(#field, #encoder));
            quote!(&#private::with(#binding, #call))
        }
    };
    match field.presence {
        Presence::Always => written,
        Presence::UnlessDefault => quote!(&#private::defaulted(#binding, #written)),
    }
}

/// Head of a map with one entry, and the key of that entry.
fn head_of_one(name: &str) -> Vec<u8> {
    let mut head = vec![0xa1];
    head.extend(text(name));
    head
}

fn raw(private: &TokenStream, encoder: &Ident, bytes: &[u8]) -> TokenStream {
    let bytes = Literal::byte_string(bytes);
    quote!(#private::Encoder::raw(#encoder, #bytes);)
}
