#include "stand_in.hpp"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>

namespace nccl_stand_in {

library* current = nullptr;
thread_local int current_device = 0;

namespace {

bool is_a_look(const std::string& name) {
  return name == "ncclCommGetAsyncError" || name == "ncclGetLastError" || name == "cudaStreamQuery" ||
         name == "cudaGetLastError";
}

}  // namespace

bool world::is_complete() const { return std::find(members.begin(), members.end(), nullptr) == members.end(); }

library::library() {
  if (current != nullptr) std::abort();
  current = this;
}
library::~library() {
  let_go();
  current = nullptr;
}

void library::enter(int rank) {
  const std::lock_guard lock(mutex_);
  here().rank = rank;
}

cudaStream_t library::make_stream() {
  const std::lock_guard lock(mutex_);
  streams_.push_back(std::make_unique<CUstream_st>());
  streams_.back()->device = current_device;
  return streams_.back().get();
}

void library::let_ranks_meet() {
  const std::lock_guard lock(mutex_);
  ranks_meet_ = true;
}

void library::fail(int rank, const std::string& function, int nth, ncclResult_t result) {
  const std::lock_guard lock(mutex_);
  failures_.push_back({rank, function, nth, result});
}

void library::stay_in_progress(int rank, std::uint64_t looks) {
  const std::lock_guard lock(mutex_);
  looks_[rank] = looks;
}

void library::report_error(int rank, ncclResult_t result) {
  const std::lock_guard lock(mutex_);
  for (const auto& communicator : communicators_) {
    if (communicator->rank != rank) continue;
    communicator->error = result;
    communicator->last_error = "told to report an error";
  }
}

void library::hold(const std::string& function) {
  const std::lock_guard lock(mutex_);
  held_.insert(function);
}

void library::wait_for_held_call() {
  std::unique_lock lock(mutex_);
  held_calls_.wait(lock, [this] { return calls_held_ > 0; });
}

void library::let_go() {
  std::unique_lock lock(mutex_);
  held_.clear();
  held_calls_.notify_all();
  held_calls_.wait(lock, [this] { return calls_held_ == 0; });
}

void library::freeze(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  stream->frozen = true;
}

void library::fail_stream(cudaStream_t stream, cudaError_t error) {
  const std::lock_guard lock(mutex_);
  stream->error = error;
}

std::vector<call> library::calls(int rank) const {
  const std::lock_guard lock(mutex_);
  std::vector<call> result;
  std::copy_if(calls_.begin(), calls_.end(), std::back_inserter(result), [&](const call& c) { return c.rank == rank; });
  return result;
}

std::vector<std::string> library::names(int rank) const {
  std::vector<std::string> result;
  for (const call& made : calls(rank)) {
    if (!is_a_look(made.name)) result.push_back(made.name);
  }
  return result;
}

int library::count(int rank, const std::string& function) const {
  const std::lock_guard lock(mutex_);
  const auto place = counts_.find({rank, function});
  return place == counts_.end() ? 0 : place->second;
}

std::vector<std::string> library::misuses() const {
  const std::lock_guard lock(mutex_);
  return misuses_;
}

int library::open_groups() const {
  const std::lock_guard lock(mutex_);
  int sum = 0;
  for (const auto& [id, state] : threads_) sum += state.depth;
  return sum;
}

int library::living_communicators() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(std::count_if(communicators_.begin(), communicators_.end(), [](const auto& communicator) {
    return communicator->state == ncclComm::life::living || communicator->state == ncclComm::life::finalizing;
  }));
}

/// Records a call. Returns the failure that it was told to return, if any.
ncclResult_t library::record(call made) {
  thread_state& state = here();
  made.rank = state.rank;
  made.depth = state.depth;
  made.device = current_device;
  const int nth = ++counts_[{made.rank, made.name}];
  ncclResult_t result = ncclSuccess;
  for (const planned_failure& planned : failures_) {
    if (planned.rank != made.rank || planned.function != made.name || planned.nth != nth) continue;
    result = planned.result;
    if (made.communicator != nullptr) made.communicator->last_error = made.name + " was told to fail";
  }
  calls_.push_back(std::move(made));
  return result;
}

bool library::is_usable(ncclComm_t communicator, const std::string& function) {
  if (communicator->state == ncclComm::life::living) return true;
  misuses_.push_back(function + " of a communicator that is gone");
  return false;
}

/// A collective, a send or a receive: starts it, or adds it to the open group.
ncclResult_t library::begin(call made) {
  ncclComm_t communicator = made.communicator;
  const ncclResult_t told = record(made);
  thread_state& state = here();
  if (told != ncclSuccess) {
    if (state.depth > 0) state.error = told;
    return told;
  }
  if (!is_usable(communicator, made.name)) return ncclInvalidArgument;
  if (communicator->looks_left > 0 || !communicator->group->is_complete()) {
    misuses_.push_back(made.name + " before the call before it was done");
    return ncclInvalidArgument;
  }
  const std::uint64_t looks = communicator->blocking ? 0 : looks_[communicator->rank];
  if (state.depth > 0) {
    state.group.push_back(std::move(made));
    return looks > 0 ? ncclInProgress : ncclSuccess;
  }
  cudaStream_t stream = made.stream;
  return enqueue(communicator, {{std::move(made)}, stream});
}

ncclResult_t library::enqueue(ncclComm_t communicator, launch made) {
  communicator->deferred.push_back(std::move(made));
  communicator->looks_left = communicator->blocking ? 0 : looks_[communicator->rank];
  if (communicator->looks_left > 0) return ncclInProgress;
  post(communicator);
  return ncclSuccess;
}

/// Puts deferred launches on the stream, and executes those that all ranks have posted.
void library::post(ncclComm_t communicator) {
  world& group = *communicator->group;
  for (launch& made : communicator->deferred) {
    ++made.stream->pending;
    made.stream->behind.emplace_back();
    group.posted[static_cast<std::size_t>(communicator->rank)].push_back(std::move(made));
  }
  communicator->deferred.clear();
  while (std::all_of(group.posted.begin(), group.posted.end(), [](const auto& queue) { return !queue.empty(); })) {
    std::vector<launch> parts;
    for (const auto& queue : group.posted) parts.push_back(queue.front());
    if (!execute(parts)) {
      misuses_.push_back(parts[0].operations[0].name + ": ranks called different collectives");
      for (ncclComm_t member : group.members) member->error = ncclInternalError;
      return;
    }
    for (auto& queue : group.posted) {
      for (const auto& copy : end_launch(queue.front().stream)) copy();
      queue.pop_front();
    }
  }
}

/// The first launch on the stream is over. Returns the copies that have waited for it.
std::vector<std::function<void()>> library::end_launch(cudaStream_t stream) {
  --stream->pending;
  std::vector<std::function<void()>> copies = std::move(stream->behind.front());
  stream->behind.pop_front();
  return copies;
}

/// Ends everything in flight, without results.
void library::drop(ncclComm_t communicator) {
  auto& queue = communicator->group->posted[static_cast<std::size_t>(communicator->rank)];
  for (const launch& made : queue) end_launch(made.stream);
  queue.clear();
  communicator->deferred.clear();
}

ncclResult_t library::look(ncclComm_t communicator) {
  if (communicator->error != ncclSuccess) return communicator->error;
  if (!communicator->blocking && !communicator->group->is_complete()) return ncclInProgress;
  if (communicator->looks_left > 0) {
    if (communicator->looks_left != for_ever) --communicator->looks_left;
    return ncclInProgress;
  }
  post(communicator);
  const bool is_idle = communicator->group->posted[static_cast<std::size_t>(communicator->rank)].empty();
  return communicator->state == ncclComm::life::finalizing && !is_idle ? ncclInProgress : ncclSuccess;
}

}  // namespace nccl_stand_in
