//! Emits the implementation that a checked model describes.

use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::quote;
use syn::spanned::Spanned;

use super::model::{Body, Field, Form, How, Model, Variant};
use crate::canonical::{Entry, encode_map, text};

pub(super) fn implementation(model: &Model<'_>) -> TokenStream {
    let private = &model.private;
    let encoder = Ident::new("__encoder", Span::mixed_site());
    let wrap = model
        .wrap
        .iter()
        .map(|name| raw(private, &encoder, &head_of_one(name)));
    let (body, absent) = match &model.body {
        Body::Struct(form) => {
            let pattern = pattern(form);
            let written = written(form, private, &encoder);
            let body = quote! {
                let Self #pattern = self;
                #written
            };
            // A newtype is its field, in this as well; a map around it is there always.
            let absent = match (form, &model.wrap) {
                (Form::Newtype(field), None) => {
                    let value = value(field, 0, private);
                    Some(quote! {
                        #[inline]
                        fn is_absent(&self) -> bool {
                            let Self #pattern = self;
                            #private::Fingerprint::is_absent(#value)
                        }
                    })
                }
                _ => None,
            };
            (body, absent)
        }
        Body::Enum(variants) if variants.is_empty() => (quote!(match *self {}), None),
        Body::Enum(variants) => {
            let arms = variants.iter().map(|it| arm(it, private, &encoder));
            (quote!(match self { #(#arms)* }), None)
        }
    };
    let header = header(model, true);
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

/// An implementation that does nothing, to stand beside errors.
pub(super) fn placeholder(model: &Model<'_>) -> TokenStream {
    let private = &model.private;
    let header = header(model, false);
    quote! {
        #header {
            fn fingerprint(&self, _: &mut #private::Encoder) {}
        }
    }
}

fn header(model: &Model<'_>, bounded: bool) -> TokenStream {
    let (ident, private) = (model.ident, &model.private);
    let mut generics = model.generics.clone();
    if bounded && !model.bounds.is_empty() {
        generics
            .make_where_clause()
            .predicates
            .extend(model.bounds.iter().cloned());
    }
    let (implemented, types, condition) = generics.split_for_impl();
    // The compiler lists what implements a trait beside a type that does not. A type that is generic must stay listed,
    // or the compiler would not name the type inside of it that is missing.
    let unlisted = model
        .generics
        .type_params()
        .next()
        .is_none()
        .then(|| quote!(#[diagnostic::do_not_recommend]));
    quote! {
        #[automatically_derived]
        #unlisted
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

/// The statements that write what a struct or a variant holds.
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

/// Binds the fields that are not skipped.
fn pattern(form: &Form<'_>) -> TokenStream {
    let bindings = form.fields().iter().enumerate().map(|(at, field)| {
        let (member, binding) = (&field.member, binding(field, at));
        quote!(#member: #binding,)
    });
    quote!({ #(#bindings)* .. })
}

/// Points at the field's type, so that is where a missing `Fingerprint` is told; resolves here, so that neither
/// `macro_rules!` nor the user's names get in its way.
fn binding(field: &Field<'_>, at: usize) -> Ident {
    let span = field.ty.span().resolved_at(Span::mixed_site());
    Ident::new(&format!("__{at}"), span)
}

/// A reference to what writes the field.
fn value(field: &Field<'_>, at: usize, private: &TokenStream) -> TokenStream {
    let binding = binding(field, at);
    let written = match &field.how {
        How::ByItself => quote!(#binding),
        How::Float => quote!(&#private::float(#binding)),
        // A call in the user's stead, so that a `&String` may go to a function of `&str`.
        How::With(path) => {
            let field = Ident::new("__field", Span::mixed_site());
            let encoder = Ident::new("__encoder", Span::mixed_site());
            let call = quote!(|#field, #encoder| #path(#field, #encoder));
            quote!(&#private::with(#binding, #call))
        }
    };
    if field.default {
        quote!(&#private::defaulted(#binding, #written))
    } else {
        written
    }
}

/// The head of a map of one entry, and its key.
fn head_of_one(name: &str) -> Vec<u8> {
    let mut head = vec![0xa1];
    head.extend(text(name));
    head
}

fn raw(private: &TokenStream, encoder: &Ident, bytes: &[u8]) -> TokenStream {
    let bytes = Literal::byte_string(bytes);
    quote!(#private::Encoder::raw(#encoder, #bytes);)
}
