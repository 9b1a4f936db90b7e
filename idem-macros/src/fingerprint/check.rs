//! Checks a type and its options, and builds the model of its canonical form.

use std::collections::HashMap;

use quote::quote;
use syn::ext::IdentExt;
use syn::{Attribute, Data, DataEnum, DeriveInput, Fields, Ident, Index, LitStr, Member, Type};

use super::bounds;
use super::model::{Body, Encoding, Field, Form, Model, Presence, Variant};
use super::parse::{Options, Place, options};
use crate::errors::Errors;
use crate::floats::{Floats, NO_CANONICAL_FLOAT, floats};
use crate::manifest::named_runtime;

/// Builds the model. It is of use for an expansion only if no errors were added.
pub(super) fn check<'a>(input: &'a DeriveInput, errors: &mut Errors) -> Model<'a> {
    let options = options(&input.attrs, Place::Type, errors);
    let private = match &options.krate {
        Some(path) => {
            let path = &path.value;
            quote!(#path::__private)
        }
        None => {
            let path = named_runtime();
            quote!(#path::__private)
        }
    };
    let body = match &input.data {
        Data::Struct(data) => {
            let form = form(&data.fields, errors);
            if errors.is_empty() {
                check_not_empty(input, &data.fields, &form, errors);
            }
            Body::Struct(form)
        }
        Data::Enum(data) => Body::Enum(variants(data, errors)),
        Data::Union(data) => {
            errors.at(
                data.union_token,
                "a union does not say which of its fields is valid, so it has no canonical form: \
                 use an enum, or implement `Fingerprint` by hand",
            );
            Body::Struct(Form::Unit)
        }
    };
    let bounds = match options.bound {
        Some(bound) => bound.value,
        None => bounds::inferred(&input.generics, &body, &private),
    };
    for parameter in input.generics.type_params() {
        check_name(&parameter.ident, "type parameter", errors);
    }
    for parameter in input.generics.const_params() {
        check_name(&parameter.ident, "const parameter", errors);
    }
    Model {
        ident: &input.ident,
        generics: &input.generics,
        private,
        wrap: options.name.map(|name| name.value.value()),
        bounds,
        body,
    }
}

/// Reports a name that the parser accepts for the sake of features of the compiler that are not stable.
fn check_name(ident: &Ident, what: &str, errors: &mut Errors) {
    if ident == "_" {
        errors.at(
            ident,
            format!("`_` is no name of a {what}, give the {what} a name"),
        );
    }
}

/// Reports a struct whose values all have the same form, although they have fields.
fn check_not_empty(input: &DeriveInput, fields: &Fields, form: &Form<'_>, errors: &mut Errors) {
    let is_empty = matches!(form, Form::Named(present) if present.is_empty());
    let mut fields = fields.iter();
    if is_empty && fields.any(|field| !is_marker(&field.ty)) {
        errors.at(
            &input.ident,
            format!(
                "every field of `{}` is skipped, so all its values would have one fingerprint: skip fewer fields, or \
                 leave out the whole value where it is used",
                input.ident
            ),
        );
    }
}

/// Returns whether values of a type hold nothing.
fn is_marker(ty: &Type) -> bool {
    let Type::Path(path) = ty else { return false };
    let last = path.path.segments.last();
    last.is_some_and(|last| last.ident == "PhantomData" || last.ident == "PhantomPinned")
}

fn variants<'a>(data: &'a DataEnum, errors: &mut Errors) -> Vec<Variant<'a>> {
    let variants = data.variants.iter().map(|variant| {
        let options = options(&variant.attrs, Place::Variant, errors);
        Variant {
            ident: &variant.ident,
            name: name(&options, &variant.ident),
            form: form(&variant.fields, errors),
        }
    });
    let variants: Vec<_> = variants.collect();
    let names = variants
        .iter()
        .zip(&data.variants)
        .map(|(checked, variant)| (&checked.name, &variant.ident, &*variant.attrs));
    check_distinct("variants", names, errors);
    variants
}

fn name(options: &Options, ident: &Ident) -> String {
    match &options.rename {
        Some(rename) => rename.value.value(),
        None => ident.unraw().to_string(),
    }
}

fn form<'a>(fields: &'a Fields, errors: &mut Errors) -> Form<'a> {
    let checked: Vec<_> = fields
        .iter()
        .enumerate()
        .map(|(position, it)| field(it, position, errors))
        .collect();
    if let Fields::Named(named) = fields {
        let present = checked.iter().zip(&named.named);
        let names = present.filter_map(|(checked, field)| {
            Some((
                &checked.as_ref()?.name,
                field.ident.as_ref()?,
                &*field.attrs,
            ))
        });
        check_distinct("fields", names, errors);
    }
    let mut present: Vec<_> = checked.into_iter().flatten().collect();
    match fields {
        Fields::Unit => Form::Unit,
        Fields::Named(_) => Form::Named(present),
        // The number of declared fields decides, so that skipping a field does not change the form of the others.
        Fields::Unnamed(unnamed) if unnamed.unnamed.len() == 1 => match present.pop() {
            Some(field) => Form::Newtype(field),
            None => Form::Tuple(vec![]),
        },
        Fields::Unnamed(_) => Form::Tuple(present),
    }
}

/// Checks a field. Returns `None` if it is skipped.
fn field<'a>(field: &'a syn::Field, position: usize, errors: &mut Errors) -> Option<Field<'a>> {
    let options = options(&field.attrs, Place::Field, errors);
    if options.skip.is_some() {
        check_skipped(&options, errors);
        return None;
    }
    match &field.ident {
        None => check_tuple_field(&options, errors),
        Some(ident) => check_name(ident, "field", errors),
    }
    let encoding = encoding(&options, &field.ty, errors);
    let presence = match options.default {
        Some(_) => Presence::UnlessDefault,
        None => Presence::Always,
    };
    let (member, name) = match &field.ident {
        Some(ident) => (Member::Named(ident.clone()), name(&options, ident)),
        None => (Member::Unnamed(Index::from(position)), String::new()),
    };
    Some(Field {
        member,
        name,
        ty: &field.ty,
        encoding,
        presence,
    })
}

/// Reports options that have no effect with `skip`.
fn check_skipped(options: &Options, errors: &mut Errors) {
    let others = [
        options.rename.as_ref().map(|it| &it.word),
        options.with.as_ref().map(|it| &it.word),
        options.default.as_ref().map(|it| &it.word),
        options.float.as_ref().map(|it| &it.word),
    ];
    for other in others.into_iter().flatten() {
        errors.at(
            other,
            format!(
                "`skip` leaves the field out, so `{other}` has no effect: remove one of the two"
            ),
        );
    }
}

/// Reports options that need a field with a name.
fn check_tuple_field(options: &Options, errors: &mut Errors) {
    if let Some(rename) = &options.rename {
        errors.at(
            &rename.word,
            "a field of a tuple has a position, not a name, so there is nothing to rename",
        );
    }
    if let Some(default) = &options.default {
        errors.at(
            &default.word,
            "a field of a tuple has a position, which cannot be left out: \
             give the fields names to use `default`",
        );
    }
}

fn encoding(options: &Options, ty: &Type, errors: &mut Errors) -> Encoding {
    match (&options.with, &options.float) {
        (Some(with), float) => {
            if let Some(float) = float {
                errors.at(
                    &float.word,
                    "the function after `with` encodes the field, so `float` has no effect: \
                     remove one of the two",
                );
            }
            Encoding::With(with.value.clone())
        }
        (None, Some(_)) => Encoding::Float,
        (None, None) => {
            let exactly = match floats(ty) {
                Some(Floats::Plain) => "add `#[fingerprint(float)]`",
                Some(Floats::Inside) => "write it with `#[fingerprint(with = function)]`",
                None => return Encoding::Fingerprint,
            };
            errors.at(
                ty,
                format!(
                    "{NO_CANONICAL_FLOAT}: {exactly} to compare it exactly (NaN is then an error), or use an integer \
                     or a decimal type"
                ),
            );
            Encoding::Fingerprint
        }
    }
}

/// Reports names that occur twice, at the second one.
fn check_distinct<'n>(
    what: &str,
    names: impl Iterator<Item = (&'n String, &'n Ident, &'n [Attribute])>,
    errors: &mut Errors,
) {
    let mut seen: HashMap<&str, &Ident> = HashMap::new();
    for (name, ident, attributes) in names {
        if let Some(first) = seen.insert(name, ident) {
            let message = format!(
                "the {what} `{first}` and `{ident}` would both have the name \"{name}\" in the canonical form: \
                 give each a different name"
            );
            match renaming(attributes) {
                Some(given) => errors.at(&given, message),
                None => errors.at(ident, message),
            }
        }
    }
}

/// Name that a `rename` gives.
fn renaming(attributes: &[Attribute]) -> Option<LitStr> {
    options(attributes, Place::Field, &mut Errors::default())
        .rename
        .map(|rename| rename.value)
}
