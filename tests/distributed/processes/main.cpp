// The scenarios of ranks that are processes, with host memory and a Communicator over sockets, which CI can run. As NCCL does, it
// adds the terms of a sum in another order than threads.
//
//   slamb_process_tests [--ranks N] [--shards S] [--jobs N] [--defect NAME]
//
// --shards: each S of the N ranks hold a model together.
// --defect: something is wrong, and the scenarios must find it: a rank's sums, or what ranks say of a lost peer.
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <slamb/slamb.hpp>
#include <slamb/testing/check_communicator.hpp>

#include "../../../examples/sockets/socket_communicator.hpp"
#include "../../device/short_options.hpp"
#include "scenarios.hpp"

namespace rank_tests {
namespace {

enum class defect { none, sums, silence } planted = defect::none;

constexpr int most_ranks = 64;

using any_ranks = slamb::any_communicator<>;

/// Adds floats in reverse order and rounds each sum, as NCCL may do.
class reversed_sums {
 public:
  explicit reversed_sums(std::shared_ptr<any_ranks> held) : held_(std::move(held)) {}

  int rank() const { return held_->rank(); }
  int size() const { return held_->size(); }
  void all_reduce_sum(std::span<float> values, slamb::host_stream stream) {
    const auto ranks = static_cast<std::size_t>(size());
    std::vector<float> terms(values.size() * ranks);
    held_->all_gather(std::as_bytes(values), std::as_writable_bytes(std::span(terms)), stream);
    for (std::size_t i = 0; i < values.size(); ++i) {
      float sum = terms[(ranks - 1) * values.size() + i];
      for (std::size_t r = ranks - 1; r-- > 0;) sum += terms[r * values.size() + i];
      values[i] = sum;
      if (planted == defect::sums && rank() == 0 && values.size() > 1000 && i == 3) values[i] *= 1.0F + 0x1p-20F;
    }
  }
  void broadcast(std::span<std::byte> values, int root, slamb::host_stream stream) {
    held_->broadcast(values, root, stream);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, slamb::host_stream stream) {
    held_->all_gather(mine, all, stream);
  }
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, slamb::host_stream stream) {
    held_->all_to_all(send, receive, stream);
  }
  void abort(const std::string& reason) { held_->abort(reason); }

 private:
  std::shared_ptr<any_ranks> held_;
};

struct socket_world {
  using stream_type = slamb::host_stream;

  /// The ranks of an optimizer.
  struct ranks_type {
    explicit ranks_type(slamb::thread_communicator threads) : any(std::move(threads)) {}
    explicit ranks_type(any_ranks others) : any(std::move(others)) {}
    any_ranks any;
  };

  class place {
   public:
    class array {
     public:
      explicit array(std::size_t count) : values_(count) {}
      float* data() { return values_.data(); }
      void write(std::span<const float> values) { std::ranges::copy(values, values_.begin()); }
      std::vector<float> read() const { return values_; }

     private:
      std::vector<float> values_;
    };
    static array floats(std::size_t count) { return array(count); }
  };

  /// A folder for the names of sockets.
  class meeting {
   public:
    explicit meeting(int ranks) : ranks_(ranks) {
      std::string name = (std::filesystem::temp_directory_path() / "slamb.XXXXXX").string();
      if (mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), "mkdtemp");
      folder_ = name;
    }
    meeting(meeting&&) = delete;
    ~meeting() {
      std::error_code ignored;
      std::filesystem::remove_all(folder_, ignored);
    }
    void introduce(int /*rank*/) const {}
    any_ranks join(int rank, milliseconds timeout) const {
      return any_ranks(socket_communicator(folder_, rank, ranks_, timeout));
    }

   private:
    int ranks_;
    std::string folder_;
  };

  static constexpr bool has_graphs = false;
  static constexpr limits waits{.timeout = std::chrono::seconds(60),
                                .accident_timeout = std::chrono::seconds(8),
                                .abort_timeout = std::chrono::seconds(0)};

  static void prepare(int /*rank*/) {}
  static std::shared_ptr<any_ranks> joined(const std::shared_ptr<any_ranks>& ranks) {
    return std::make_shared<any_ranks>(reversed_sums(ranks));
  }
  static void check(any_ranks& ranks, place& /*at*/) { slamb::check_communicator(ranks, {.large = 10'007}); }
  static std::string refusal(const std::exception& /*failure*/) { return ""; }
  static bool names_the_cause(const std::string& text) {
    if (planted == defect::silence) return text.find("nobody says this") != std::string::npos;
    const auto says = [&](const char* words) { return text.find(words) != std::string::npos; };
    return says("has closed its connection") || says("is lost") || says(" ms for rank") || says("did not") ||
           says("has failed: ");
  }

  template <class Optimizer>
  static std::shared_ptr<slamb::optimizer> make(std::span<const slamb::parameter> tensors, ranks_type ranks,
                                                place& /*at*/, bool is_captured) {
    return std::make_shared<Optimizer>(tensors,
                                       device_tests::short_options<typename Optimizer::options_type>(is_captured),
                                       std::move(ranks.any), slamb::host_backend{.threads = 1});
  }

  static ranks_type ranks_of_shards(slamb::thread_communicator exchange, slamb::thread_communicator shards) {
    return ranks_type(any_ranks(slamb::sharded_communicator(std::move(exchange), std::move(shards))));
  }

  static const recipe<socket_world> recipes[9];
};

using slamb::chain, slamb::int8, slamb::random_k, slamb::sign;

constexpr recipe<socket_world> socket_world::recipes[9] = {
    {.name = "adamw", .make = socket_world::make<slamb::adamw<>>, .has_exact_sums = true},
    {.name = "lamb", .make = socket_world::make<slamb::lamb<>>, .has_exact_sums = true, .loses_one_of = most_ranks},
    {.name = "lamb_int8", .make = socket_world::make<slamb::lamb<int8>>, .has_exact_sums = true},
    {.name = "slamb", .make = socket_world::make<slamb::slamb<>>},
    {.name = "slamb_int8", .make = socket_world::make<slamb::slamb<chain<random_k<>, int8>>>},
    {.name = "slamb_by_differences",
     .make = socket_world::make<slamb::slamb_by_differences<random_k<>>>,
     .loses_one_of = most_ranks},
    {.name = "one_bit_adam", .make = socket_world::make<slamb::one_bit_adam<>>, .has_exact_sums = true},
    {.name = "one_bit_lamb",
     .make = socket_world::make<slamb::one_bit_lamb<>>,
     .has_exact_sums = true,
     .loses_one_of = most_ranks},
    {.name = "zero_one_adam", .make = socket_world::make<slamb::zero_one_adam<>>, .has_local_steps = true},
};

int run(int ranks, int shards, std::size_t jobs) {
  adopt_orphans();
  const findings<socket_world> found(ranks, shards);
  results all;
  run_well<socket_world>(ranks, found, all);
  lose_ranks<socket_world>(ranks, jobs, found, all);
  return all.print_counts();
}

}  // namespace
}  // namespace rank_tests

int main(int count, char** arguments) try {
  int ranks = 2;
  int shards = 1;
  int jobs = 16;  // most of them wait
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string_view option = arguments[i];
    const std::string_view value = arguments[i + 1];
    if (option == "--ranks") ranks = std::atoi(arguments[i + 1]);
    if (option == "--shards") shards = std::atoi(arguments[i + 1]);
    if (option == "--jobs") jobs = std::atoi(arguments[i + 1]);
    using rank_tests::defect, rank_tests::planted;
    if (option == "--defect") planted = value == "sums" ? defect::sums : defect::silence;
  }
  if (count % 2 == 0 || ranks < 2 || ranks > rank_tests::most_ranks || jobs < 1 || shards < 1 || ranks % shards != 0) {
    std::fprintf(stderr,
                 "usage: slamb_process_tests [--ranks N] [--shards S] [--jobs N] [--defect sums | silence], where S "
                 "divides N\n");
    return 2;
  }
  return rank_tests::run(ranks, shards, static_cast<std::size_t>(jobs));
} catch (const std::exception& failure) {
  std::fprintf(stderr, "slamb_process_tests: %s\n", failure.what());
  return 1;
}
