// Slices of CXXRTL values that touch only the chunks they cover.
//
// The runtime's own slice copies and shifts the whole value, once per lane of a bus that is thousands of bits
// wide. Same meaning, so only the time differs. To stand between cxxrtl.h and the model.
#include <cxxrtl/cxxrtl.h>

namespace cxxrtl {

template<size_t Bits, size_t Stop, size_t Start>
CXXRTL_ALWAYS_INLINE value<Stop - Start + 1> read_slice(const value<Bits> &from) {
    constexpr size_t first = Start / 32, last = Stop / 32, shift = Start % 32;
    value<Stop - Start + 1> result;
    for (size_t n = 0; n < result.chunks; n++) {
        chunk_t chunk = from.data[first + n] >> shift;
        if (shift != 0 && first + n < last)
            chunk |= from.data[first + n + 1] << (32 - shift);
        result.data[n] = chunk;
    }
    result.data[result.chunks - 1] &= result.msb_mask;
    return result;
}

template<size_t Bits, size_t Stop, size_t Start>
CXXRTL_ALWAYS_INLINE void write_slice(value<Bits> &to, const value<Stop - Start + 1> &from) {
    constexpr size_t first = Start / 32, last = Stop / 32, shift = Start % 32;
    for (size_t n = first; n <= last; n++) {
        chunk_t chunk = n - first < from.chunks ? from.data[n - first] << shift : 0;
        if (shift != 0 && n > first)
            chunk |= from.data[n - first - 1] >> (32 - shift);
        chunk_t mask = ~chunk_t(0);
        if (n == first)
            mask &= ~chunk_t(0) << shift;
        if (n == last)
            mask &= ~chunk_t(0) >> (31 - Stop % 32);
        to.data[n] = (to.data[n] & ~mask) | (chunk & mask);
    }
}

template<size_t Bits, size_t Stop, size_t Start>
struct slice_expr<const value<Bits>, Stop, Start> : public expr_base<slice_expr<const value<Bits>, Stop, Start>> {
    static constexpr size_t bits = Stop - Start + 1;
    const value<Bits> &expr;

    slice_expr(const value<Bits> &expr) : expr(expr) {}
    slice_expr(const slice_expr &) = delete;

    CXXRTL_ALWAYS_INLINE operator value<bits>() const { return read_slice<Bits, Stop, Start>(expr); }
    CXXRTL_ALWAYS_INLINE value<bits> val() const { return read_slice<Bits, Stop, Start>(expr); }
};

template<size_t Bits, size_t Stop, size_t Start>
struct slice_expr<value<Bits>, Stop, Start> : public expr_base<slice_expr<value<Bits>, Stop, Start>> {
    static constexpr size_t bits = Stop - Start + 1;
    value<Bits> &expr;

    slice_expr(value<Bits> &expr) : expr(expr) {}
    slice_expr(const slice_expr &) = delete;

    CXXRTL_ALWAYS_INLINE operator value<bits>() const { return read_slice<Bits, Stop, Start>(expr); }
    CXXRTL_ALWAYS_INLINE value<bits> val() const { return read_slice<Bits, Stop, Start>(expr); }

    CXXRTL_ALWAYS_INLINE slice_expr &operator=(const value<bits> &from) {
        write_slice<Bits, Stop, Start>(expr, from);
        return *this;
    }
};

}  // namespace cxxrtl
