//! Enums whose variants have names.

/// An enum with the name of each variant beside it: `as_str` gives the name, `ALL` has every variant in its order.
#[macro_export]
macro_rules! named {
    ($(#[$meta:meta])* $vis:vis enum $enum:ident { $($(#[$of_variant:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        $vis enum $enum {
            $($(#[$of_variant])* $variant,)+
        }

        impl $enum {
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            $vis const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl ::std::fmt::Display for $enum {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

/// A constant for each key, and the table of all in their order, all as visible as the table.
#[macro_export]
macro_rules! keys {
    ($(#[$of_table:meta])* $vis:vis $table:ident: $($(#[$of_key:meta])* $key:ident = $name:expr;)+) => {
        $($(#[$of_key])* $vis const $key: &str = $name;)+

        $(#[$of_table])* $vis const $table: &[&str] = &[$($key),+];
    };
}

#[cfg(test)]
mod tests {
    named! {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        enum Colour {
            Red = "red",
            DarkBlue = "dark-blue",
        }
    }

    mod colours {
        use super::Colour;

        keys! {
            pub(super) ALL:

            RED = Colour::Red.as_str();
            BLUE = "blue";
        }
    }

    #[test]
    fn every_variant_has_its_name_in_its_order() {
        assert_eq!(Colour::ALL, [Colour::Red, Colour::DarkBlue]);
        assert_eq!(Colour::ALL.map(Colour::as_str), ["red", "dark-blue"]);
        assert_eq!(Colour::DarkBlue.to_string(), "dark-blue");
    }

    #[test]
    fn every_key_is_in_the_table() {
        assert_eq!(colours::ALL, [colours::RED, colours::BLUE]);
    }
}
