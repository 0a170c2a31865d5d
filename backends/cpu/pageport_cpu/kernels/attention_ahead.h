// Which lines of memory will be read soon.
#pragma once

#include "kernel.h"

namespace pageport {

// Pieces of memory that are asked for while something else is computed, a few lines of each in turn: the processor has
// room for few requests of ours at a time, but sees from lines in a row what else will be wanted.
class Ahead {
public:
    void add(const void* start, int64_t bytes) {
        const char *first = static_cast<const char*>(start), *end = first + bytes;
        if (count_ > 0 && pieces_[count_ - 1].end == first) pieces_[count_ - 1].end = end;
        else if (count_ < MOST_PIECES) pieces_[count_++] = {first, end};
    }

    // Asks for the next LINES lines, fewer where a piece ends.
    template <int LINES>
    void fetch() {
        if (count_ == 0) return;
        Piece& piece = pieces_[current_];
        // Into the second level: the first one has even less room.
        for (int i = 0; i < LINES; ++i) __builtin_prefetch(piece.next + i * CACHE_LINE, 0, 2);
        piece.next += LINES * CACHE_LINE;
        if (piece.next < piece.end) ++current_;
        else piece = pieces_[--count_];
        if (current_ >= count_) current_ = 0;
    }

    void fetch_rest() {
        while (count_ > 0) fetch<1>();
    }

private:
    static constexpr int MOST_PIECES = 16;

    struct Piece {
        const char *next, *end;
    };

    Piece pieces_[MOST_PIECES];
    int count_ = 0, current_ = 0;
};

}  // namespace pageport
