//! Floats in the types of fields and arguments.

use syn::{GenericArgument, PathArguments, Type, TypePath};

pub(crate) const NO_CANONICAL_FLOAT: &str = "a float has no canonical form by default, because its last digits may \
                                             change on the way through other programs";

/// Place of the floats in a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Floats {
    /// As `#[fingerprint(float)]` accepts them.
    Plain,
    /// In another container of the standard library.
    Inside,
}

/// Returns how a type holds floats, if its text shows any.
pub(crate) fn floats(ty: &Type) -> Option<Floats> {
    match ty {
        Type::Array(array) => floats(&array.elem),
        Type::Slice(slice) => floats(&slice.elem),
        Type::Reference(reference) => floats(&reference.elem),
        Type::Paren(paren) => floats(&paren.elem),
        Type::Group(group) => floats(&group.elem),
        Type::Tuple(tuple) => inside(tuple.elems.iter()),
        Type::Path(TypePath {
            qself: None, path, ..
        }) => {
            let last = path.segments.last()?;
            let PathArguments::AngleBracketed(arguments) = &last.arguments else {
                let is_float = last.ident == "f32" || last.ident == "f64";
                return is_float.then_some(Floats::Plain);
            };
            let types = arguments.args.iter().filter_map(|argument| match argument {
                GenericArgument::Type(ty) => Some(ty),
                _ => None,
            });
            match last.ident.to_string().as_str() {
                "Option" | "Vec" => types.filter_map(floats).max(),
                "Arc" | "BTreeMap" | "Box" | "Cow" | "HashMap" | "LinkedList" | "Rc"
                | "VecDeque" => inside(types),
                _ => None,
            }
        }
        _ => None,
    }
}

fn inside<'a>(mut types: impl Iterator<Item = &'a Type>) -> Option<Floats> {
    let found = types.any(|ty| floats(ty).is_some());
    found.then_some(Floats::Inside)
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::{Floats, floats};

    #[test]
    fn floats_are_found_in_containers_of_the_standard_library() {
        for ty in [
            parse_quote!(f32),
            parse_quote!(&core::primitive::f64),
            parse_quote!(Option<Vec<[f64; 3]>>),
            parse_quote!(&[f64]),
        ] {
            assert_eq!(floats(&ty), Some(Floats::Plain));
        }
        for ty in [
            parse_quote!((u8, f64)),
            parse_quote!(HashMap<String, f64>),
            parse_quote!(Option<Box<f64>>),
        ] {
            assert_eq!(floats(&ty), Some(Floats::Inside));
        }
        for ty in [
            parse_quote!(u64),
            parse_quote!(Wrapper<f64>),
            parse_quote!(fn(f64)),
            parse_quote!(PhantomData<f64>),
        ] {
            assert_eq!(floats(&ty), None);
        }
    }
}
