//! Infers the bounds of an implementation from the types of its fields.

use proc_macro2::TokenStream;
use syn::visit::{self, Visit};
use syn::{Generics, Ident, Type, TypePath, WherePredicate, parse_quote};

use super::model::{Body, Encoding, Field, Form, Presence};

/// Bounds that every field needs to have a canonical form.
///
/// Like the standard derives, they bound each type parameter that a field uses. For an associated type of a parameter
/// they bound only that type.
pub(super) fn inferred(
    generics: &Generics,
    body: &Body<'_>,
    private: &TokenStream,
) -> Vec<WherePredicate> {
    let forms: Vec<_> = match body {
        Body::Struct(form) => vec![form],
        Body::Enum(variants) => variants.iter().map(|variant| &variant.form).collect(),
    };
    let fields: Vec<_> = forms.into_iter().flat_map(Form::fields).collect();
    let mut bounds = defaults(generics, &fields);
    let mut used = Used::new(generics);
    for field in fields {
        if let Encoding::Fingerprint = field.encoding {
            used.visit_type(field.ty);
        }
    }
    for (param, is_used) in &used.params {
        if *is_used {
            bounds.push(parse_quote!(#param: #private::Fingerprint));
        }
    }
    for ty in &used.projections {
        bounds.push(parse_quote!(#ty: #private::Fingerprint));
    }
    bounds
}

/// Bounds for the fields with `#[fingerprint(default)]`.
fn defaults(generics: &Generics, fields: &[&Field<'_>]) -> Vec<WherePredicate> {
    fields
        .iter()
        .filter(|field| field.presence == Presence::UnlessDefault)
        .filter(|field| Used::new(generics).any_in(field.ty))
        .map(|field| {
            let ty = field.ty;
            parse_quote!(#ty: ::core::default::Default + ::core::cmp::PartialEq)
        })
        .collect()
}

/// Type parameters that types use.
struct Used<'a> {
    /// All parameters, each with whether it is used.
    params: Vec<(&'a Ident, bool)>,
    /// Associated types of parameters: `T::Item` and `<T as Trait>::Item`.
    projections: Vec<TypePath>,
}

impl<'a> Used<'a> {
    fn new(generics: &'a Generics) -> Self {
        Self::of(generics.type_params().map(|param| &param.ident))
    }

    fn of(params: impl Iterator<Item = &'a Ident>) -> Self {
        Self {
            params: params.map(|param| (param, false)).collect(),
            projections: vec![],
        }
    }

    fn any_in(mut self, ty: &Type) -> bool {
        self.visit_type(ty);
        !self.projections.is_empty() || self.params.iter().any(|(_, used)| *used)
    }
}

impl<'ast> Visit<'ast> for Used<'_> {
    fn visit_type_path(&mut self, path: &'ast TypePath) {
        let segments = &path.path.segments;
        let last = segments.last();
        if last.is_some_and(|last| last.ident == "PhantomData") {
            // It holds no value of its type argument.
            return;
        }
        if let Some(qself) = &path.qself {
            let params = self.params.iter().map(|(param, _)| *param);
            if Used::of(params).any_in(&qself.ty) {
                self.projections.push(path.clone());
            }
            return;
        }
        let first = segments
            .first()
            .filter(|_| path.path.leading_colon.is_none());
        let param = first.and_then(|first| {
            let mut params = self.params.iter_mut();
            params.find(|(param, _)| **param == first.ident)
        });
        match param {
            Some(_) if segments.len() > 1 => self.projections.push(path.clone()),
            Some((_, used)) => *used = true,
            None => {}
        }
        visit::visit_type_path(self, path);
    }
}
