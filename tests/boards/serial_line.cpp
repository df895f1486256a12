// The host's end of a serial line to a compiled device: a bit every `divisor` cycles, sampled in its middle.
#include <cstdint>
#include <deque>

namespace {

constexpr int bits_per_byte = 10;  // start, 8 data, stop

struct Line {
    cxxrtl_design::p_top top;
    uint64_t divisor;
    std::deque<uint8_t> to_send;
    bool rx = true;  // as the device sees it
    uint32_t out_shift = 0, in_shift = 0;
    int out_left = 0, in_left = 0;
    uint64_t out_wait = 0, in_wait = 0;

    void send() {
        if (out_wait) {
            out_wait--;
            return;
        }
        if (!out_left && !to_send.empty()) {
            out_shift = 1u << (bits_per_byte - 1) | uint32_t(to_send.front()) << 1;
            out_left = bits_per_byte;
            to_send.pop_front();
        }
        rx = true;
        if (out_left) {
            rx = out_shift & 1;
            out_shift >>= 1;
            out_left--;
            out_wait = divisor - 1;
        }
    }

    // Whether a bit completes a byte, which is then in `in_shift` with its start and stop bit.
    bool receive(bool tx) {
        if (!in_left) {
            if (!tx) {
                in_left = bits_per_byte;
                in_wait = divisor / 2 - 1;
            }
            return false;
        }
        if (in_wait) {
            in_wait--;
            return false;
        }
        in_shift = (in_shift >> 1) | uint32_t(tx) << (bits_per_byte - 1);
        in_wait = divisor - 1;
        return --in_left == 0;
    }

    bool cycle() {
        send();
        top.p_rx.set<bool>(rx);
        top.p_clk.set<bool>(false);
        top.step();
        const bool tx = top.p_tx.get<bool>();
        top.p_clk.set<bool>(true);
        top.step();
        return receive(tx);
    }
};

}  // namespace

extern "C" {

void *line_open(uint64_t divisor) {
    Line *line = new Line;
    line->divisor = divisor;
    return line;
}

void line_close(void *opaque) { delete static_cast<Line *>(opaque); }

void line_send(void *opaque, const uint8_t *bytes, uint64_t count) {
    Line &line = *static_cast<Line *>(opaque);
    line.to_send.insert(line.to_send.end(), bytes, bytes + count);
}

// Until `room` bytes have come, or neither end has begun one for `timeout` cycles. Returns how many came, -1
// after one without start or stop bit.
int64_t line_receive(void *opaque, uint8_t *bytes, uint64_t room, uint64_t timeout) {
    Line &line = *static_cast<Line *>(opaque);
    uint64_t count = 0;
    for (uint64_t silent = 0; count < room && silent < timeout; silent++) {
        if (line.cycle()) {
            if ((line.in_shift & (1u << (bits_per_byte - 1) | 1u)) != 1u << (bits_per_byte - 1))
                return -1;
            bytes[count++] = uint8_t(line.in_shift >> 1);
        }
        if (line.out_left || line.in_left || !line.to_send.empty())
            silent = 0;
    }
    return int64_t(count);
}

}  // extern "C"
