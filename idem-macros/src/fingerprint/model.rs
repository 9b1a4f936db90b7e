//! What a type is to its canonical form, checked once, so that the expansion has nothing left to refuse.

use std::collections::HashMap;

use proc_macro2::TokenStream;
use quote::quote;
use syn::ext::IdentExt;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Data, DeriveInput, ExprPath, Fields, GenericArgument, Generics, Ident, Index,
    LitStr, Member, PathArguments, Type, TypePath, WherePredicate,
};

use super::parse::{Errors, Options, Place, options};

/// A type that gets a `Fingerprint`.
pub(super) struct Model<'a> {
    pub(super) ident: &'a Ident,
    pub(super) generics: &'a Generics,
    /// The path of the runtime's `__private`.
    pub(super) private: TokenStream,
    /// The name that the form is wrapped in.
    pub(super) wrap: Option<String>,
    /// What must hold, beyond what the type itself demands.
    pub(super) bounds: Vec<WherePredicate>,
    pub(super) body: Body<'a>,
}

pub(super) enum Body<'a> {
    Struct(Form<'a>),
    Enum(Vec<Variant<'a>>),
}

pub(super) struct Variant<'a> {
    pub(super) ident: &'a Ident,
    pub(super) name: String,
    pub(super) form: Form<'a>,
}

pub(super) enum Form<'a> {
    Unit,
    Newtype(Field<'a>),
    Tuple(Vec<Field<'a>>),
    Named(Vec<Field<'a>>),
}

impl<'a> Form<'a> {
    pub(super) fn fields(&self) -> &[Field<'a>] {
        match self {
            Self::Unit => &[],
            Self::Newtype(field) => std::slice::from_ref(field),
            Self::Tuple(fields) | Self::Named(fields) => fields,
        }
    }
}

/// A field that is not skipped.
pub(super) struct Field<'a> {
    pub(super) member: Member,
    /// Its name in the form; empty where it has a place instead.
    pub(super) name: String,
    pub(super) ty: &'a Type,
    pub(super) how: How,
    /// Whether it is left out while it equals its default.
    pub(super) default: bool,
}

/// How a field is written.
pub(super) enum How {
    ByItself,
    Float,
    With(ExprPath),
}

pub(super) fn check<'a>(input: &'a DeriveInput, errors: &mut Errors) -> Model<'a> {
    let options = options(&input.attrs, Place::Type, errors);
    let private = match &options.krate {
        Some(path) => {
            let path = &path.value;
            quote!(#path::__private)
        }
        None => quote!(::idem_runtime::__private),
    };
    let body = match &input.data {
        Data::Struct(data) => Body::Struct(form(&data.fields, errors)),
        Data::Enum(data) => {
            let variants = data.variants.iter().map(|variant| {
                let options = self::options(&variant.attrs, Place::Variant, errors);
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
            distinct("variants", names, errors);
            Body::Enum(variants)
        }
        Data::Union(data) => {
            errors.at(
                &data.union_token,
                "a union does not say which of its fields holds, so it has no canonical form; \
                 use an enum, or implement `Fingerprint` by hand",
            );
            Body::Struct(Form::Unit)
        }
    };
    let bounds = match options.bound {
        Some(bound) => bound.value,
        None => inferred(&input.generics, &body, &private),
    };
    Model {
        ident: &input.ident,
        generics: &input.generics,
        private,
        wrap: options.name.map(|name| name.value.value()),
        bounds,
        body,
    }
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
        .map(|(place, it)| field(it, place, errors))
        .collect();
    if let Fields::Named(named) = fields {
        let names = checked
            .iter()
            .zip(&named.named)
            .filter_map(|(checked, field)| {
                Some((
                    &checked.as_ref()?.name,
                    field.ident.as_ref()?,
                    &*field.attrs,
                ))
            });
        distinct("fields", names, errors);
    }
    let mut kept: Vec<_> = checked.into_iter().flatten().collect();
    match fields {
        Fields::Unit => Form::Unit,
        Fields::Named(_) => Form::Named(kept),
        // What is declared decides, so that skipping a field does not change the shape of the others.
        Fields::Unnamed(unnamed) if unnamed.unnamed.len() == 1 => match kept.pop() {
            Some(field) => Form::Newtype(field),
            None => Form::Tuple(vec![]),
        },
        Fields::Unnamed(_) => Form::Tuple(kept),
    }
}

fn field<'a>(field: &'a syn::Field, place: usize, errors: &mut Errors) -> Option<Field<'a>> {
    let options = options(&field.attrs, Place::Field, errors);
    if let Some(skip) = &options.skip {
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
                    "`{}` leaves the field out, so `{other}` has no effect: keep one of the two",
                    skip.word
                ),
            );
        }
        return None;
    }
    if field.ident.is_none() {
        if let Some(rename) = &options.rename {
            errors.at(
                &rename.word,
                "a field of a tuple has a place, not a name, so there is nothing to rename",
            );
        }
        if let Some(default) = &options.default {
            errors.at(
                &default.word,
                "a field of a tuple has a place, which cannot be left out; \
                 give the fields names to use `default`",
            );
        }
    }
    if let (Some(with), Some(float)) = (&options.with, &options.float) {
        errors.at(
            &float.word,
            format!(
                "the function after `{}` writes the field, so `float` has no effect: \
                 keep one of the two",
                with.word
            ),
        );
    }
    let how = match (options.with.as_ref(), &options.float) {
        (Some(with), _) => How::With(with.value.clone()),
        (None, Some(_)) => How::Float,
        (None, None) => {
            if holds_floats(&field.ty) {
                errors.at(
                    &field.ty,
                    "a float has no canonical form unless you ask for it, since what went through \
                     other programs may come back with other last digits: \
                     add `#[fingerprint(float)]` to compare it exactly (NaN is then an error), \
                     or use an integer or a decimal type",
                );
            }
            How::ByItself
        }
    };
    Some(Field {
        member: match &field.ident {
            Some(ident) => Member::Named(ident.clone()),
            None => Member::Unnamed(Index::from(place)),
        },
        name: field
            .ident
            .as_ref()
            .map_or_else(String::new, |ident| name(&options, ident)),
        ty: &field.ty,
        how,
        default: options.default.is_some(),
    })
}

/// Refuses names that coincide, on the token that gives the second of them.
fn distinct<'n>(
    what: &str,
    names: impl Iterator<Item = (&'n String, &'n Ident, &'n [Attribute])>,
    errors: &mut Errors,
) {
    let mut seen: HashMap<&str, &Ident> = HashMap::new();
    for (name, ident, attributes) in names {
        if let Some(first) = seen.insert(name, ident) {
            let message = format!(
                "the {what} `{first}` and `{ident}` would both be written as \"{name}\": \
                 give each a name of its own"
            );
            // A name that is not the identifier's own was given by an attribute.
            match renaming(attributes) {
                Some(given) => errors.at(&given, message),
                None => errors.at(ident, message),
            }
        }
    }
}

fn renaming(attributes: &[Attribute]) -> Option<LitStr> {
    options(attributes, Place::Field, &mut Errors::default())
        .rename
        .map(|rename| rename.value)
}

/// Whether this is `f32`, `f64`, or what `#[fingerprint(float)]` takes made of them.
fn holds_floats(ty: &Type) -> bool {
    match ty {
        Type::Array(array) => holds_floats(&array.elem),
        Type::Reference(reference) => holds_floats(&reference.elem),
        Type::Paren(paren) => holds_floats(&paren.elem),
        Type::Group(group) => holds_floats(&group.elem),
        Type::Path(TypePath { path, .. }) => path.segments.last().is_some_and(|last| {
            let word = last.ident.to_string();
            match (word.as_str(), &last.arguments) {
                ("f32" | "f64", PathArguments::None) => true,
                ("Option" | "Vec", PathArguments::AngleBracketed(arguments)) => arguments
                    .args
                    .iter()
                    .any(|argument| matches!(argument, GenericArgument::Type(ty) if holds_floats(ty))),
                _ => false,
            }
        }),
        _ => false,
    }
}

/// What must hold for every field to have a form: as the standard derives do it, per parameter that is used, and more
/// precisely for what is named through a parameter.
fn inferred(generics: &Generics, body: &Body<'_>, private: &TokenStream) -> Vec<WherePredicate> {
    let forms: Vec<_> = match body {
        Body::Struct(form) => vec![form],
        Body::Enum(variants) => variants.iter().map(|variant| &variant.form).collect(),
    };
    let mut bounds = vec![];
    let mut used = Used::new(generics);
    for field in forms.iter().flat_map(|form| form.fields()) {
        if let How::ByItself = field.how {
            used.visit_type(field.ty);
        }
        if field.default && Used::new(generics).any_in(field.ty) {
            let ty = field.ty;
            bounds.push(syn::parse_quote!(
                #ty: ::core::default::Default + ::core::cmp::PartialEq
            ));
        }
    }
    for (param, is_used) in &used.params {
        if *is_used {
            bounds.push(syn::parse_quote!(#param: #private::Fingerprint));
        }
    }
    for ty in &used.projections {
        bounds.push(syn::parse_quote!(#ty: #private::Fingerprint));
    }
    bounds
}

/// Which type parameters fields are made of.
struct Used<'a> {
    params: Vec<(&'a Ident, bool)>,
    /// `T::Item` and `<T as Trait>::Item`.
    projections: Vec<TypePath>,
}

impl<'a> Used<'a> {
    fn new(generics: &'a Generics) -> Self {
        Self {
            params: generics
                .type_params()
                .map(|param| (&param.ident, false))
                .collect(),
            projections: vec![],
        }
    }

    fn any_in(mut self, ty: &Type) -> bool {
        self.visit_type(ty);
        !self.projections.is_empty() || self.params.iter().any(|(_, used)| *used)
    }

    fn is_param(&self, ident: &Ident) -> bool {
        self.params.iter().any(|(param, _)| *param == ident)
    }
}

impl<'ast> Visit<'ast> for Used<'_> {
    fn visit_type_path(&mut self, path: &'ast TypePath) {
        let segments = &path.path.segments;
        // Its value is nothing, whatever it stands for.
        if segments
            .last()
            .is_some_and(|last| last.ident == "PhantomData")
        {
            return;
        }
        if let Some(qself) = &path.qself {
            let mut inner = Self {
                params: self
                    .params
                    .iter()
                    .map(|(param, _)| (*param, false))
                    .collect(),
                projections: vec![],
            };
            inner.visit_type(&qself.ty);
            if !inner.projections.is_empty() || inner.params.iter().any(|(_, used)| *used) {
                self.projections.push(path.clone());
            }
            return;
        }
        if let Some(first) = segments.first()
            && path.path.leading_colon.is_none()
            && self.is_param(&first.ident)
        {
            if segments.len() > 1 {
                self.projections.push(path.clone());
            } else if let Some((_, used)) = self
                .params
                .iter_mut()
                .find(|(param, _)| **param == first.ident)
            {
                *used = true;
            }
        }
        visit::visit_type_path(self, path);
    }
}
