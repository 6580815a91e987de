// The communicator of one rank behind an interface: ranks are threads or processes, and every combination of a recipe and a
// compressor is compiled once for both.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <slamb/core/concepts.hpp>
#include <span>
#include <utility>

namespace train {

/// A Communicator that holds one of any type. Its collectives are what the library's recipes call: sums of floats, and bytes.
class rank_communicator {
 public:
  // Not for its own type, which is asked first: whether that is a communicator depends on this constructor.
  template <class C>
  requires(!std::same_as<C, rank_communicator> && slamb::communicator<C>) explicit rank_communicator(C communicator)
      : held_(std::make_unique<holder<C>>(std::move(communicator))) {}

  /// What it holds, which is a C. @throws std::bad_cast if it is not
  template <class C>
  C take() && {
    return std::move(dynamic_cast<holder<C>&>(*held_).held);
  }

  int rank() const { return held_->rank(); }
  int size() const { return held_->size(); }
  void all_reduce_sum(std::span<float> values, slamb::host_stream /*stream*/) { held_->all_reduce_sum(values); }
  void broadcast(std::span<std::byte> values, int root, slamb::host_stream /*stream*/) {
    held_->broadcast(values, root);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, slamb::host_stream /*stream*/) {
    held_->all_gather(mine, all);
  }
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive, slamb::host_stream /*stream*/) {
    held_->all_to_all(send, receive);
  }

 private:
  struct interface {
    interface() = default;
    interface(const interface&) = delete;
    interface& operator=(const interface&) = delete;
    virtual ~interface() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual void all_reduce_sum(std::span<float> values) = 0;
    virtual void broadcast(std::span<std::byte> values, int root) = 0;
    virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
    virtual void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) = 0;
  };

  template <class C>
  struct holder final : interface {
    explicit holder(C communicator) : held(std::move(communicator)) {}
    int rank() const override { return held.rank(); }
    int size() const override { return held.size(); }
    void all_reduce_sum(std::span<float> values) override { held.all_reduce_sum(values, slamb::host_stream{}); }
    void broadcast(std::span<std::byte> values, int root) override {
      held.broadcast(values, root, slamb::host_stream{});
    }
    void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
      held.all_gather(mine, all, slamb::host_stream{});
    }
    void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) override {
      held.all_to_all(send, receive, slamb::host_stream{});
    }
    C held;
  };

  std::unique_ptr<interface> held_;
};

}  // namespace train
