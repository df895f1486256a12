"""Constants of the units that compute 2^f: coefficients and tables as integers, with proven error bounds.

The lower part is written by `python -m nearkv_sim.golden.exp_fit`, which derives the constants and checks
every bound over all 65,536 fractions against 120-bit arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from nearkv_hdl.spec.formats import Format, Overflow, Rounding

# A base-2 exponent x = n + f, such as a score minus the running maximum; every 32-bit value is allowed.
EXP_ARGUMENT = Format(32, signed=True, fraction_bits=16)
EXP_EXPONENT = Format(16, signed=True)  # n = floor(x)
EXP_FRACTION = Format(16, signed=False, fraction_bits=16)  # f = x - n
# 2^f lies in [1, 2): the largest mantissa is 2 - 2^-15.
EXP_MANTISSA = Format(16, signed=False, fraction_bits=15, rounding=Rounding.HALF_UP)
# IEEE 754 binary16 as a bit pattern; above 65504 it becomes infinity.
FP16 = Format(16, signed=False, rounding=Rounding.HALF_UP, overflow=Overflow.SATURATE)

COEFFICIENT_FRACTION_BITS = 17  # an accumulator below 1 then fits an 18-bit signed multiplier port
ERROR_FRACTION_BITS = 32  # bounds are stored as integers in units of 2^-32


@dataclass(frozen=True)
class Accuracy:
    """Proven bound on the relative error of a mantissa, over every fraction.

    |mantissa / (2^15 · 2^f) - 1| <= max_error / 2^32; the error is largest at `worst_fraction`.
    """

    max_error: int
    worst_fraction: int

    @property
    def max_relative_error(self) -> float:
        """The bound as a number."""
        return self.max_error / (1 << ERROR_FRACTION_BITS)


@dataclass(frozen=True)
class Polynomial:
    """2^f = 1 + c_1·f + … + c_d·f^d. `coefficients` are c_1 … c_d with 17 fraction bits, all positive."""

    coefficients: tuple[int, ...]
    accuracy: Accuracy


@dataclass(frozen=True)
class Lookup:
    """2^f read at the nearest of 2^index_bits indices, entries rounded to `entry_fraction_bits`."""

    index_bits: int
    entry_fraction_bits: int
    accuracy: Accuracy

    @property
    def entries(self) -> tuple[int, ...]:
        """Mantissas, UQ1.15."""
        dropped = EXP_MANTISSA.fraction_bits - self.entry_fraction_bits
        return tuple(
            exp2_rounded(index, self.index_bits, self.entry_fraction_bits) << dropped
            for index in range(1 << self.index_bits)
        )


@dataclass(frozen=True)
class Segments:
    """2^f as a straight line in each of 2^index_bits segments: (base + slope·r) >> product_fraction_bits.

    r is the upper `remainder_bits` of the fraction below the index.
    """

    index_bits: int
    remainder_bits: int
    product_fraction_bits: int
    bases: tuple[int, ...]
    slopes: tuple[int, ...]
    accuracy: Accuracy


@dataclass(frozen=True)
class ShiftAdd:
    """2^f as a product of factors 1 + 2^-i, found by subtracting their logarithms from f.

    Factors 1 … `factors` are found one by one; what is left of f, times ln 2 (`ln2` with `ln2_bits`), has
    `digits` - `factors` + 1 binary digits, which are factors of one final product.
    `residual_guard` and `mantissa_guard` are extra bits of f and of the product; `logarithms` are
    log2(1 + 2^-i) with 16 + residual_guard fraction bits; `start_bias` and `end_bias` centre the error.
    """

    factors: int
    digits: int
    residual_guard: int
    mantissa_guard: int
    ln2: int
    ln2_bits: int
    start_bias: int
    end_bias: int
    logarithms: tuple[int, ...]
    accuracy: Accuracy


def exp2_rounded(numerator: int, denominator_bits: int, fraction_bits: int) -> int:
    """2^(numerator / 2^denominator_bits), 0 <= exponent < 1, rounded to `fraction_bits`; integers only."""
    working = 64 + fraction_bits
    value = 1 << working
    root = 2 << working  # 2^(1/1), then square roots of it
    for bit in reversed(range(denominator_bits)):
        root = isqrt(root << working)
        if numerator >> bit & 1:
            value = value * root >> working
    return (value + (1 << 63)) >> 64


# Written by exp_fit; do not edit below.
# fmt: off

# By degree.
POLYNOMIALS: dict[int, Polynomial] = {
    2:
        Polynomial(coefficients=(87290, 43244), accuracy=Accuracy(max_error=8873105, worst_fraction=11188)),
    3:
        Polynomial(coefficients=(91110, 29838, 10100),
                   accuracy=Accuracy(max_error=427887, worst_fraction=6337)),
    4:
        Polynomial(coefficients=(90839, 31625, 6848, 1760),
                   accuracy=Accuracy(max_error=75340, worst_fraction=3841)),
    5:
        Polynomial(coefficients=(90852, 31479, 7314, 1182, 245),
                   accuracy=Accuracy(max_error=65258, worst_fraction=160)),
    6:
        Polynomial(coefficients=(90852, 31483, 7277, 1276, 163, 20),
                   accuracy=Accuracy(max_error=65258, worst_fraction=160)),
}

# By index bits.
LOOKUPS: dict[int, Lookup] = {
    8:
        Lookup(index_bits=8,
               entry_fraction_bits=10,
               accuracy=Accuracy(max_error=7655578, worst_fraction=384)),
    9:
        Lookup(index_bits=9,
               entry_fraction_bits=11,
               accuracy=Accuracy(max_error=3946867, worst_fraction=832)),
    12:
        Lookup(index_bits=12,
               entry_fraction_bits=15,
               accuracy=Accuracy(max_error=428242, worst_fraction=520)),
}

# By index bits.
SEGMENTS: dict[int, Segments] = {
    3:
        Segments(index_bits=3,
                 remainder_bits=8,
                 product_fraction_bits=3,
                 bases=(262144, 285792, 311680, 339880, 370616, 404152, 440728, 480624),
                 slopes=(92, 101, 110, 120, 131, 143, 156, 170),
                 accuracy=Accuracy(max_error=4012037, worst_fraction=8191)),
    5:
        Segments(index_bits=5,
                 remainder_bits=9,
                 product_fraction_bits=7,
                 bases=(4194368, 4286272, 4380096, 4476032, 4573824, 4674048, 4776512, 4880960, 4988032,
                        5097088, 5208704, 5322688, 5439296, 5558400, 5680128, 5804608, 5931584, 6061568,
                        6194176, 6329856, 6468416, 6610048, 6754816, 6902848, 7053824, 7208448, 7366208,
                        7527488, 7692352, 7860864, 8032832, 8208832),
                 slopes=(179, 183, 187, 191, 196, 200, 204, 209, 213, 218, 223, 228, 233, 238, 243, 248,
                         254, 259, 265, 271, 277, 283, 289, 295, 302, 308, 315, 322, 329, 336, 344, 351),
                 accuracy=Accuracy(max_error=374834, worst_fraction=2035)),
    7:
        Segments(index_bits=7,
                 remainder_bits=9,
                 product_fraction_bits=11,
                 bases=(67109888, 67474432, 67840512, 68209152, 68579328, 68951552, 69325824, 69702656,
                        70081024, 70461440, 70843904, 71228928, 71615488, 72004608, 72395264, 72788480,
                        73183744, 73581056, 73980416, 74382336, 74786304, 75192320, 75600384, 76011008,
                        76423680, 76838912, 77256192, 77675520, 78096896, 78521344, 78947328, 79376384,
                        79806976, 80240640, 80676352, 81114112, 81554944, 81997824, 82442752, 82890240,
                        83340800, 83792896, 84248064, 84705280, 85165568, 85627904, 86092800, 86560256,
                        87030272, 87502848, 87977984, 88455680, 88935936, 89418752, 89904640, 90392576,
                        90883584, 91377152, 91873280, 92371968, 92873728, 93377536, 93884928, 94394880,
                        94906880, 95422464, 95940608, 96460800, 96985088, 97511936, 98041344, 98573824,
                        99108864, 99646976, 100188160, 100732416, 101279232, 101829120, 102382080,
                        102938112, 103496704, 104058880, 104623616, 105191936, 105763328, 106337280,
                        106914816, 107495424, 108079104, 108665856, 109256192, 109849088, 110445568,
                        111045120, 111648256, 112254464, 112863744, 113477120, 114093056, 114712576,
                        115335168, 115961856, 116591104, 117224448, 117860864, 118500864, 119144448,
                        119791104, 120441856, 121095680, 121753088, 122414080, 123079168, 123747328,
                        124419072, 125094912, 125774336, 126456832, 127143424, 127834112, 128527872,
                        129225728, 129927680, 130633216, 131342336, 132055552, 132772864, 133493760),
                 slopes=(711, 715, 720, 723, 727, 731, 736, 739, 743, 747, 752, 755, 759, 763, 768, 772,
                         776, 780, 785, 789, 793, 797, 802, 806, 811, 814, 819, 823, 829, 832, 838, 841,
                         847, 851, 855, 861, 864, 869, 874, 880, 883, 889, 893, 899, 903, 908, 913, 918,
                         923, 928, 933, 938, 943, 949, 953, 959, 963, 968, 974, 980, 984, 991, 995, 1000,
                         1007, 1012, 1017, 1024, 1029, 1034, 1040, 1045, 1051, 1057, 1063, 1068, 1074, 1080,
                         1086, 1091, 1098, 1103, 1110, 1115, 1121, 1128, 1134, 1140, 1146, 1152, 1158, 1165,
                         1171, 1178, 1184, 1191, 1198, 1203, 1210, 1216, 1224, 1229, 1237, 1243, 1250, 1257,
                         1263, 1271, 1277, 1284, 1292, 1299, 1305, 1312, 1320, 1326, 1333, 1342, 1349, 1355,
                         1364, 1371, 1378, 1385, 1393, 1401, 1408, 1415),
                 accuracy=Accuracy(max_error=81287, worst_fraction=734)),
}

# By digits.
SHIFT_ADDS: dict[int, ShiftAdd] = {
    10:
        ShiftAdd(factors=5,
                 digits=10,
                 residual_guard=0,
                 mantissa_guard=0,
                 ln2=11,
                 ln2_bits=4,
                 start_bias=0,
                 end_bias=0,
                 logarithms=(38336, 21098, 11136, 5732, 2909),
                 accuracy=Accuracy(max_error=7103671, worst_fraction=58089)),
    12:
        ShiftAdd(factors=5,
                 digits=12,
                 residual_guard=0,
                 mantissa_guard=0,
                 ln2=11,
                 ln2_bits=4,
                 start_bias=0,
                 end_bias=0,
                 logarithms=(38336, 21098, 11136, 5732, 2909),
                 accuracy=Accuracy(max_error=4125594, worst_fraction=58089)),
    14:
        ShiftAdd(factors=7,
                 digits=14,
                 residual_guard=0,
                 mantissa_guard=2,
                 ln2=710,
                 ln2_bits=10,
                 start_bias=2,
                 end_bias=0,
                 logarithms=(38336, 21098, 11136, 5732, 2909, 1466, 736),
                 accuracy=Accuracy(max_error=464164, worst_fraction=10833)),
    18:
        ShiftAdd(factors=9,
                 digits=18,
                 residual_guard=3,
                 mantissa_guard=5,
                 ln2=710,
                 ln2_bits=10,
                 start_bias=3,
                 end_bias=16,
                 logarithms=(306689, 168783, 89090, 45856, 23275, 11727, 5886, 2949, 1476),
                 accuracy=Accuracy(max_error=79721, worst_fraction=797)),
}
