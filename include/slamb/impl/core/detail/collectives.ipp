#pragma once

#include "slamb/core/detail/collectives.hpp"

namespace slamb::detail {

SLAMB_DECL void counted_collectives::all_reduce_sum(std::span<float> values, any_stream stream) {
  held_->all_reduce_sum(values, stream);
  counts_.record(collective::all_reduce, values.size(), held_->value_bytes(), size());
}
SLAMB_DECL void counted_collectives::all_reduce_sum_with_header(std::span<float> values, std::size_t header,
                                                                any_stream stream) {
  held_->all_reduce_sum(values, stream);
  if (values.size() > header)
    counts_.record(collective::all_reduce, values.size() - header, held_->value_bytes(), size());
  const std::uint64_t bytes = header * held_->value_bytes();
  comparisons_ = comparisons_ + traffic{values.size() > header ? 0U : 1U, header, bytes,
                                        traffic::bytes_sent_by(collective::all_reduce, bytes, size())};
}
SLAMB_DECL void counted_collectives::broadcast(std::span<std::byte> values, int root, any_stream stream) {
  held_->broadcast(values, root, stream);
  counts_.record(collective::broadcast, values.size(), 1, size());
}
SLAMB_DECL void counted_collectives::all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                                                any_stream stream) {
  held_->all_gather(mine, all, stream);
  counts_.record(collective::all_gather, all.size(), 1, size());
}
SLAMB_DECL void counted_collectives::all_to_all(std::span<const std::byte> send, std::span<std::byte> receive,
                                                any_stream stream) {
  held_->all_to_all(send, receive, stream);
  counts_.record(collective::all_to_all, send.size(), 1, size());
}
SLAMB_DECL void counted_collectives::all_reduce_in_shards(std::span<float> values, any_stream stream) {
  held_->all_reduce_in_shards(values, stream);
  in_shards_ = in_shards_ + traffic{1, values.size(), values.size_bytes(),
                                    traffic::bytes_sent_by(collective::all_reduce, values.size_bytes(), shard_size())};
}
SLAMB_DECL void counted_collectives::all_gather_in_shards(std::span<const std::byte> mine, std::span<std::byte> all,
                                                          any_stream stream) {
  held_->all_gather_in_shards(mine, all, stream);
  in_shards_ = in_shards_ + traffic{1, all.size(), all.size(),
                                    traffic::bytes_sent_by(collective::all_gather, all.size(), shard_size())};
}
SLAMB_DECL void counted_collectives::compare_in_shards(std::span<const std::byte> mine, std::span<std::byte> all,
                                                       any_stream stream) {
  held_->all_gather_in_shards(mine, all, stream);
  comparisons_ = comparisons_ + traffic{1, all.size(), all.size(),
                                        traffic::bytes_sent_by(collective::all_gather, all.size(), shard_size())};
}

}  // namespace slamb::detail
