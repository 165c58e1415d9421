#![doc = "to be written"]
