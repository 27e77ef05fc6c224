/// An enum each of whose variants has a name, with a list of all variants.
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$meta:meta])* $visibility:vis enum $enum:ident {
            $($(#[$about:meta])* $variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$meta])*
        $visibility enum $enum {
            $($(#[$about])* $variant,)+
        }

        impl $enum {
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Its name, as others read and write it.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}
