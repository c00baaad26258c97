// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.30;

/// Forwarder executes requests that were signed by accounts without gas, and appends the signer to the call data
/// (ERC-2771). Its interface, errors and event are those of OpenZeppelin Contracts' ERC2771Forwarder, version 5.
contract Forwarder {
    struct ForwardRequestData {
        address from;
        address to;
        uint256 value;
        uint256 gas;
        uint48 deadline;
        bytes data;
        bytes signature;
    }

    /// A request was executed. The target's failure reverts the whole transaction, so success is always true.
    event ExecutedForwardRequest(address indexed signer, uint256 nonce, bool success);

    /// The signature is of another account. The signer is 0 if the signature is malformed.
    error ERC2771ForwarderInvalidSigner(address signer, address from);
    /// The transaction carries another value than the request.
    error ERC2771ForwarderMismatchedValue(uint256 requestedValue, uint256 msgValue);
    /// The deadline is before the block's timestamp.
    error ERC2771ForwarderExpiredRequest(uint48 deadline);
    /// The target does not accept this forwarder's word about the sender.
    error ERC2771UntrustfulTarget(address target, address forwarder);
    /// The target reverted.
    error FailedCall();

    bytes32 private constant DOMAIN_TYPE =
        keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");
    bytes32 private constant REQUEST_TYPE = keccak256(
        "ForwardRequest(address from,address to,uint256 value,uint256 gas,uint256 nonce,uint48 deadline,bytes data)"
    );
    string private constant VERSION = "1";

    /// Half of the group's order: of the two signatures (r, s) and (r, n-s), only the one with the lower s is valid.
    uint256 private constant MAX_S = 0x7fffffffffffffffffffffffffffffff5d576e7357a4501ddfe92f46681b20a0;

    string private name;
    bytes32 private immutable nameHash;

    /// The number of executed requests of each signer, which is the nonce of the next one.
    mapping(address => uint256) public nonces;

    constructor(string memory name_) {
        name = name_;
        nameHash = keccak256(bytes(name_));
    }

    /// Executes a request, or reverts with one of the errors. The caller pays for gas and sends the request's value.
    function execute(ForwardRequestData calldata request) external payable {
        if (msg.value != request.value) {
            revert ERC2771ForwarderMismatchedValue(request.value, msg.value);
        }
        if (!isTrustedBy(request.to)) {
            revert ERC2771UntrustfulTarget(request.to, address(this));
        }
        if (request.deadline < block.timestamp) {
            revert ERC2771ForwarderExpiredRequest(request.deadline);
        }
        address signer = recover(request);
        if (signer == address(0) || signer != request.from) {
            revert ERC2771ForwarderInvalidSigner(signer, request.from);
        }
        // The nonce is used before the call, so that the target cannot execute the request again.
        uint256 nonce = nonces[signer]++;
        if (!forward(request)) {
            revert FailedCall();
        }
        emit ExecutedForwardRequest(signer, nonce, true);
    }

    /// Reports whether execute would call the target, in a transaction with the request's value.
    function verify(ForwardRequestData calldata request) external view returns (bool) {
        address signer = recover(request);
        return isTrustedBy(request.to) && request.deadline >= block.timestamp && signer != address(0)
            && signer == request.from;
    }

    /// Returns the EIP-712 domain of requests (EIP-5267). The first value has a bit for each field in use.
    function eip712Domain()
        external
        view
        returns (
            bytes1 fields,
            string memory name_,
            string memory version,
            uint256 chainId,
            address verifyingContract,
            bytes32 salt,
            uint256[] memory extensions
        )
    {
        return (hex"0f", name, VERSION, block.chainid, address(this), bytes32(0), new uint256[](0));
    }

    /// Calls the target with the request's gas, and reports whether it succeeded.
    function forward(ForwardRequestData calldata request) private returns (bool success) {
        bytes memory data = abi.encodePacked(request.data, request.from);
        uint256 gasLimit = request.gas;
        address to = request.to;
        uint256 value = request.value;
        uint256 left;
        // The target's return data are not copied, because their size would be the target's choice.
        assembly ("memory-safe") {
            success := call(gasLimit, to, value, add(data, 0x20), mload(data), 0, 0)
            left := gas()
        }
        // CALL gives the target at most 63/64 of the gas (EIP-150), whatever it asks for. A caller that sends too
        // little could thus make the target fail and use up the request. At least 1/64 of the gas is left after a
        // call. If the target had all the gas that it was to have, that is 1/63 of it or more. Otherwise the whole
        // transaction fails, with all its gas.
        if (left < gasLimit / 63) {
            assembly ("memory-safe") {
                invalid()
            }
        }
    }

    /// Reports whether the target returns true for isTrustedForwarder. An account without code does not.
    function isTrustedBy(address target) private view returns (bool) {
        bytes memory data = abi.encodeWithSignature("isTrustedForwarder(address)", address(this));
        bool success;
        uint256 size;
        uint256 answer;
        assembly ("memory-safe") {
            success := staticcall(gas(), target, add(data, 0x20), mload(data), 0, 0x20)
            size := returndatasize()
            answer := mload(0)
        }
        return success && size >= 0x20 && answer != 0;
    }

    /// Returns the account that signed the request with its current nonce; 0 if the signature is malformed.
    function recover(ForwardRequestData calldata request) private view returns (address) {
        bytes calldata signature = request.signature;
        if (signature.length != 65 || uint256(bytes32(signature[32:64])) > MAX_S) {
            return address(0);
        }
        return ecrecover(
            digest(request), uint8(signature[64]), bytes32(signature[0:32]), bytes32(signature[32:64])
        );
    }

    /// Returns the EIP-712 hash of the request with the current nonce of its sender.
    function digest(ForwardRequestData calldata request) private view returns (bytes32) {
        bytes32 requestHash = keccak256(
            abi.encode(
                REQUEST_TYPE,
                request.from,
                request.to,
                request.value,
                request.gas,
                nonces[request.from],
                request.deadline,
                keccak256(request.data)
            )
        );
        bytes32 domain =
            keccak256(abi.encode(DOMAIN_TYPE, nameHash, keccak256(bytes(VERSION)), block.chainid, address(this)));
        return keccak256(abi.encodePacked(hex"1901", domain, requestHash));
    }
}
