// SPDX-License-Identifier: Apache-2.0
/*
 * The library from C++: every kind of call, by objects that give back what they hold, on a pool of
 * its own. Built and run by test_library.py. Ends with 1 and the place where something is wrong.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fabricmgr.h>

#define MUST(what)                                                                                 \
	do {                                                                                       \
		if (!(what)) {                                                                     \
			std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what,         \
				     fm_error_detail());                                           \
			std::exit(1);                                                              \
		}                                                                                  \
	} while (0)

namespace {

class Server {
public:
	Server()
	{
		fm_server_options options{};

		options.size = sizeof(options);
		options.pool_bytes = 32u << 20;
		options.memory = "memfd";
		options.adopted_bytes = FM_CHUNK_BYTES;
		MUST(fm_server_create(&options, &server_) == 0);
		thread_ = std::thread([this] { MUST(fm_server_run(server_) == 0); });
	}
	~Server()
	{
		fm_server_stop(server_);
		thread_.join();
		fm_server_destroy(server_);
	}
	Server(const Server &) = delete;
	Server &operator=(const Server &) = delete;

	fm_pool *attach()
	{
		fm_attach_options options{};
		fm_pool *pool = nullptr;

		options.size = sizeof(options);
		MUST(fm_server_connect(server_, &options.fd) == 0);
		MUST(fm_pool_attach(&options, &pool) == 0);
		return pool;
	}

private:
	fm_server *server_ = nullptr;
	std::thread thread_;
};

using Pool = std::unique_ptr<fm_pool, decltype(&fm_pool_detach)>;
using Queue = std::unique_ptr<fm_queue, decltype(&fm_queue_destroy)>;

/* A lease for as long as the object lives. */
class Lease {
public:
	Lease(fm_pool *pool, const fm_key &key) : pool_(pool)
	{
		is_there_ = fm_pool_acquire(pool, &key, 1, &block_) == 1;
	}
	~Lease()
	{
		if (is_there_)
			fm_block_release(pool_, &block_, 1);
	}
	Lease(const Lease &) = delete;
	Lease &operator=(const Lease &) = delete;

	explicit operator bool() const { return is_there_; }
	const fm_block &operator*() const { return block_; }

private:
	fm_pool *pool_;
	fm_block block_{};
	bool is_there_ = false;
};

void blocks_in_place(fm_pool *writer, fm_pool *reader, const fm_digest &ns)
{
	std::vector<std::uint32_t> tokens(64, 7);
	std::vector<fm_key> keys(4);
	std::vector<fm_block> blocks(4);
	std::vector<fm_seal> seals(4);

	MUST(fm_chain_keys(&ns, tokens.data(), 4, 16, nullptr, 0, keys.data(), nullptr) == 0);
	MUST(fm_block_stage(writer, 10000, 4, blocks.data(), 0) == 0);
	for (std::size_t i = 0; i < 4; i++) {
		std::memset(blocks[i].data, static_cast<int>(i), 10000);
		seals[i].block = &blocks[i];
		seals[i].key = keys[i];
		seals[i].parent = nullptr;
	}
	MUST(fm_group_seal(writer, &ns, seals.data(), 4) == 0);
	fm_block_release(writer, blocks.data(), 4);
	MUST(fm_pool_match_tokens(reader, &ns, tokens.data(), 64, 16, nullptr, 0) == 4);
	for (std::size_t i = 0; i < 4; i++) {
		Lease lease(reader, keys[i]);

		MUST(lease);
		MUST((*lease).length == 10000);
		MUST(static_cast<const char *>((*lease).data)[9999] == static_cast<char>(i));
		MUST(fm_block_verify(reader, &*lease) == 0);
	}
}

void without_waiting(fm_pool *pool, const fm_digest &ns)
{
	fm_queue *made = nullptr;
	std::vector<char> data(300000, 'x'), back(300000);
	iovec from{data.data(), data.size()}, to{back.data(), back.size()};
	fm_put_parts put{};
	fm_get_parts get{};
	fm_queue_request request{};
	fm_queue_done done{};

	MUST(fm_queue_create(pool, nullptr, &made) == 0);
	Queue queue(made, fm_queue_destroy);
	MUST(fm_opaque_key(&ns, "name", 4, &put.key) == 0);
	put.parts = &from;
	put.n_parts = 1;
	request.size = sizeof(request);
	request.op = FM_QUEUE_PUT;
	request.n = 1;
	request.puts = &put;
	request.ns = &ns;
	MUST(fm_queue_submit(queue.get(), &request, nullptr) == 0);
	MUST(fm_queue_wait(queue.get(), &done, 1, 0) == 1 && done.result == 0);
	get.key = put.key;
	get.parts = &to;
	get.n_parts = 1;
	request.op = FM_QUEUE_GET;
	request.gets = &get;
	MUST(fm_queue_submit(queue.get(), &request, nullptr) == 0);
	MUST(fm_queue_wait(queue.get(), &done, 1, 0) == 1 && done.result == 1);
	MUST(get.is_verified && back == data);
}

void layer_by_layer(fm_pool *writer, fm_pool *reader)
{
	fm_block block{}, joined{};
	fm_key id{};

	MUST(fm_block_stage(writer, fm_layers_length(8, 4096), 1, &block, 0) == 0);
	MUST(fm_layers_begin(writer, &block, 8, 4096, &id) == 0);
	std::thread computing([&] {
		for (std::uint32_t layer = 0; layer < 8; layer++) {
			std::memset(static_cast<char *>(block.data) + layer * 4096u,
				    static_cast<int>(layer), 4096);
			MUST(fm_layers_seal(writer, &block, layer, 1) == 0);
		}
	});
	MUST(fm_layers_join(reader, &id, &joined) == 0);
	for (std::uint32_t layer = 0; layer < 8; layer++) {
		MUST(fm_layers_wait(reader, &joined, layer, 0) == 0);
		MUST(static_cast<const char *>(joined.data)[layer * 4096u] ==
		     static_cast<char>(layer));
	}
	computing.join();
	fm_block_release(reader, &joined, 1);
	fm_block_discard(writer, &block, 1);
}

void memory_of_its_own(fm_pool *writer, fm_pool *reader, const fm_digest &ns)
{
	int fd = memfd_create("own", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	fm_region *region = nullptr;
	fm_stage_at at{};
	fm_seal seal{};
	fm_block block{};

	MUST(fd >= 0 && ftruncate(fd, FM_CHUNK_BYTES) == 0 && fchmod(fd, 0600) == 0);
	MUST(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
	MUST(fm_region_adopt(writer, fd, 0, &region) == 0);
	close(fd);
	at.offset = 8192;
	at.length = 5000;
	MUST(fm_block_stage_at(writer, region, &at, 1, 0) == 0);
	MUST(at.block.data == static_cast<char *>(fm_region_data(region)) + 8192);
	seal.block = &at.block;
	seal.key.bytes[0] = 77;
	MUST(fm_block_seal(writer, &ns, &seal, 1) == 0);
	fm_block_release(writer, &at.block, 1);
	MUST(fm_pool_acquire(reader, &seal.key, 1, &block) == 1);
	MUST(fm_region_release(writer, region, 1) == FM_ERR_BUSY);
	fm_block_release(reader, &block, 1);
	MUST(fm_region_release(writer, region, 0) == 0);
}

} // namespace

int main()
{
	Server server;
	Pool writer(server.attach(), fm_pool_detach), reader(server.attach(), fm_pool_detach);
	fm_digest ns{};

	ns.bytes[0] = 1;
	MUST(std::strcmp(fm_error_name(FM_ERR_BUSY), "FM_ERR_BUSY") == 0);
	blocks_in_place(writer.get(), reader.get(), ns);
	without_waiting(writer.get(), ns);
	layer_by_layer(writer.get(), reader.get());
	memory_of_its_own(writer.get(), reader.get(), ns);
	std::puts("all of it, from C++");
	return 0;
}
