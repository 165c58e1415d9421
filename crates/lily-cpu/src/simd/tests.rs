use super::*;

struct Halves<'a> {
    bits: &'a [u16; 16],
    f16: &'a mut [f32; 16],
    bf16: &'a mut [f32; 16],
}

impl Kernel for Halves<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        s.store(s.f16_to_f32(s.load_u16(self.bits)), self.f16);
        s.store(s.bf16_to_f32(s.load_u16(self.bits)), self.bf16);
    }
}

#[test]
fn every_half_widens_exactly_on_every_instruction_set() {
    for isa in Isa::available() {
        for base in (0..=u16::MAX).step_by(16) {
            let bits = std::array::from_fn(|i| base + i as u16);
            let (mut f16, mut bf16) = ([0.0; 16], [0.0; 16]);
            isa.run(Halves { bits: &bits, f16: &mut f16, bf16: &mut bf16 });
            for i in 0..16 {
                let expected = half::f16::from_bits(bits[i]).to_f32();
                let same = f16[i].to_bits() == expected.to_bits();
                assert!(same || f16[i].is_nan() && expected.is_nan(), "{isa} {:#x}", bits[i]);
                assert_eq!(bf16[i].to_bits(), u32::from(bits[i]) << 16, "{isa}");
            }
        }
    }
}

struct Totals<'a>(&'a [[f32; 16]; 16], &'a mut [f32; 16]);

impl Kernel for Totals<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        s.store(s.totals(std::array::from_fn(|i| s.load(&self.0[i]))), self.1);
    }
}

#[test]
fn totals_are_the_sums_of_the_lanes_of_each_vector_on_every_instruction_set() {
    // A bit per lane tells the lanes apart, a factor the vectors, and the sums are exact.
    let lanes = std::array::from_fn(|i| std::array::from_fn(|j| ((1 + i * i) << j) as f32));
    for isa in Isa::available() {
        let mut totals = [0.0; 16];
        isa.run(Totals(&lanes, &mut totals));
        assert_eq!(totals, std::array::from_fn(|i| ((1 + i * i) * 0xffff) as f32), "{isa}");
    }
}

#[test]
fn an_instruction_set_is_found_by_its_name() {
    for isa in Isa::ALL {
        assert_eq!(isa.name().parse(), Ok(isa));
    }
    assert_eq!("sse9".parse::<Isa>(), Err(UnknownIsa { found: "sse9".into() }));
}
