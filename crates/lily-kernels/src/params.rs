//! Numbers that a kernel takes by value (`constant NormParams& p`): written once, here, for Rust and
//! for every machine.
//!
//! `params!` defines the Rust struct; [`header`] is the text that stands for `#include "params.h"` in
//! the kernels. Fields are `f32`, `u32`, `i32`, `u64` and arrays of these, in an order that needs no
//! padding, which both sides assert: so equal sizes mean equal offsets.

use std::fmt::Write as _;

/// A struct of this module.
pub trait Params {
    /// Its name, in Rust and in the kernels.
    const NAME: &'static str;

    /// Its definition for the kernels.
    fn declaration() -> String;

    /// The bytes as the kernels read them: fields in order, little-endian.
    fn bytes(&self) -> Vec<u8>;
}

/// A field's type.
trait Field {
    /// As it is called in the kernels, without the dimension of an array.
    const TYPE: &'static str;
    /// The dimension of an array, or nothing.
    const LEN: Option<usize> = None;
    fn put(&self, bytes: &mut Vec<u8>);
}

macro_rules! fields {
    ($($rust:ty => $msl:literal),*) => {$(
        impl Field for $rust {
            const TYPE: &'static str = $msl;
            fn put(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
fields!(f32 => "float", u32 => "uint", i32 => "int", u64 => "ulong");

impl<T: Field, const N: usize> Field for [T; N] {
    const TYPE: &'static str = T::TYPE;
    const LEN: Option<usize> = Some(N);
    fn put(&self, bytes: &mut Vec<u8>) {
        for value in self {
            value.put(bytes);
        }
    }
}

/// One line of a struct for the kernels.
fn field_declaration<T: Field>(_: fn(&T) -> T, name: &str, doc: &[&str]) -> String {
    let mut text = String::new();
    for line in doc {
        writeln!(text, "  //{line}").expect("writing to a string");
    }
    match T::LEN {
        None => writeln!(text, "  {} {name};", T::TYPE),
        Some(n) => writeln!(text, "  {} {name}[{n}];", T::TYPE),
    }
    .expect("writing to a string");
    text
}

/// Defines the structs and [`header`].
macro_rules! params {
    ($(
        $(#[doc = $doc:literal])*
        struct $name:ident {
            $( $(#[doc = $field_doc:literal])* $field:ident: $type:ty, )*
        }
    )*) => {
        $(
            $(#[doc = $doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, PartialEq)]
            pub struct $name {
                $( $(#[doc = $field_doc])* pub $field: $type, )*
            }

            const _: () = assert!(
                size_of::<$name>() == 0 $( + size_of::<$type>() )*,
                concat!(stringify!($name), " has padding: order its fields by size"),
            );

            impl Params for $name {
                const NAME: &'static str = stringify!($name);

                fn declaration() -> String {
                    let mut text = String::new();
                    for line in [$($doc),*] as [&str; [$($doc),*].len()] {
                        writeln!(text, "//{line}").expect("writing to a string");
                    }
                    writeln!(text, "struct {} {{", Self::NAME).expect("writing to a string");
                    $( text.push_str(&field_declaration::<$type>(|v| *v, stringify!($field), &[$($field_doc),*])); )*
                    writeln!(
                        text,
                        "}};\nstatic_assert(sizeof({}) == {}, \"the size that the host has\");\n",
                        Self::NAME,
                        size_of::<Self>(),
                    )
                    .expect("writing to a string");
                    text
                }

                fn bytes(&self) -> Vec<u8> {
                    let mut bytes = Vec::with_capacity(size_of::<Self>());
                    $( self.$field.put(&mut bytes); )*
                    bytes
                }
            }
        )*

        /// What `#include "params.h"` stands for: the definitions of all structs.
        pub fn header() -> String {
            let mut text = String::from("// Made from crates/lily-kernels/src/params.rs.\n");
            $( text.push_str(&$name::declaration()); )*
            text
        }

        /// Bytes of the struct of that name.
        pub fn size_of_struct(name: &str) -> Option<usize> {
            match name {
                $( stringify!($name) => Some(size_of::<$name>()), )*
                _ => None,
            }
        }
    };
}

params! {
    /// A root mean square norm.
    struct NormParams {
        /// Added to the mean of squares.
        eps: f32,
    }

    /// Softmax attention.
    struct AttentionParams {
        /// Factor on a dot product of query and key.
        scale: f32,
    }

    /// Norm, rotary embedding and scale of query and key heads.
    struct RopeParams {
        /// Added to the mean of squares of a head.
        eps: f32,
        /// Factor on the rotated components.
        rope_scale: f32,
        /// Factor on a dot product of query and key.
        scale: f32,
        /// Pairs of components that turn: the rest of a head stays.
        n_pairs: u32,
        /// Angle per position of each pair, `n_pairs` of them.
        inv_freq: [f32; 128],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_fields_in_order_and_as_long_as_the_struct() {
        let mut inv_freq = [0.0; 128];
        inv_freq[127] = 3.0;
        let params = RopeParams { eps: 1.0, rope_scale: 2.0, scale: 0.5, n_pairs: 7, inv_freq };
        let bytes = params.bytes();
        assert_eq!(bytes.len(), size_of::<RopeParams>());
        assert_eq!(bytes[0..4], 1.0f32.to_le_bytes());
        assert_eq!(bytes[12..16], 7u32.to_le_bytes());
        assert_eq!(bytes[16 + 127 * 4..], 3.0f32.to_le_bytes());
    }

    #[test]
    fn a_declaration_carries_types_dimensions_documentation_and_the_size() {
        let text = RopeParams::declaration();
        assert!(text.starts_with("// Norm, rotary embedding"), "{text}");
        assert!(text.contains("\n  uint n_pairs;\n"), "{text}");
        assert!(text.contains("\n  float inv_freq[128];\n"), "{text}");
        assert!(text.contains("static_assert(sizeof(RopeParams) == 528,"), "{text}");
    }
}
